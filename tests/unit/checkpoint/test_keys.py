"""Master keys: where they come from, and that they are never told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from singularity_proxy.checkpoint.keys import (
    AzureKeyVault,
    EnvironmentKeys,
    FileKeys,
    ListedKeys,
    MasterKey,
    VaultKeys,
    new_key,
    open_keys,
)
from singularity_proxy.errors import BadRequest, KeyUnavailable, Unsupported


def test_derived_keys_differ_by_user_and_purpose() -> None:
    key, other = MasterKey("a", b"\1" * 32), MasterKey("a", b"\2" * 32)
    derived = {
        each.derive(user, purpose)
        for each in (key, other)
        for user in ("alice", "bob")
        for purpose in ("names", "contents")
    }
    assert len(derived) == 8
    assert all(len(each) == 32 for each in derived)
    assert key.derive("alice", "names") == MasterKey("b", b"\1" * 32).derive("alice", "names")
    # RFC 5869 with SHA-256: extract with a salt of zeros, expand with this info.
    import hashlib
    import hmac

    prk = hmac.new(bytes(32), b"\1" * 32, hashlib.sha256).digest()
    info = b"jupyter-singularity checkpoint 1\0names\0alice\1"
    assert key.derive("alice", "names") == hmac.new(prk, info, hashlib.sha256).digest()


def test_a_key_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# the current one first\n{new_key('b')}\n\n{new_key('a')}\n")
    path.chmod(0o600)
    keys = FileKeys(str(path))
    assert keys.current().id == "b"
    assert keys.get("a").secret != keys.get("b").secret
    with pytest.raises(KeyUnavailable, match="no key 'c'"):
        keys.get("c")
    path.chmod(0o640)
    with pytest.raises(KeyUnavailable, match="chmod 600"):
        FileKeys(str(path))
    with pytest.raises(KeyUnavailable, match="No such file"):
        FileKeys(str(tmp_path / "none"))


@pytest.mark.parametrize(
    "line", ["only-an-id", "id dG9vIHNob3J0", "id !!!", "bad/id " + "A" * 44, "a b c"]
)
def test_lines_that_are_no_keys(line: str) -> None:
    with pytest.raises(BadRequest) as caught:
        ListedKeys(line, "the file")
    for word in line.split()[1:]:
        assert len(word) < 4 or word not in caught.value.message


def test_two_keys_of_one_id() -> None:
    with pytest.raises(BadRequest, match="key 2"):
        ListedKeys(f"{new_key('a')},{new_key('a')}", "the file")
    with pytest.raises(KeyUnavailable, match="holds no key"):
        ListedKeys("# nothing", "the file").current()


def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEYS", f"{new_key('x')},{new_key('y')}")
    keys = open_keys("env:MY_KEYS")
    assert isinstance(keys, EnvironmentKeys)
    assert keys.current().id == "x"
    monkeypatch.delenv("MY_KEYS")
    with pytest.raises(KeyUnavailable, match="MY_KEYS"):
        open_keys("env:MY_KEYS")


class Client:
    """Stands in for azure.keyvault.secrets.SecretClient."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.asked = 0

    def get_secret(self, name: str, version: str | None = None) -> object:
        self.asked += 1
        version = version or list(self.versions)[-1]
        value = self.versions[version]
        return SimpleNamespace(value=value, properties=SimpleNamespace(version=version))


def test_keys_of_a_vault() -> None:
    client = Client()
    client.versions["v1"] = new_key("v1").split()[1]
    keys = VaultKeys(AzureKeyVault("https://x.vault.azure.net", "checkpoints", client))
    first = keys.current()
    assert first.id == "v1"
    client.versions["v2"] = new_key("v2").split()[1]
    assert keys.current().id == "v2"
    asked = client.asked
    assert keys.get("v1") == first
    assert client.asked == asked  # it is known already
    with pytest.raises(KeyUnavailable, match="KeyError") as caught:
        keys.get("v3")
    assert client.versions["v1"] not in str(caught.value)
    client.versions["v4"] = "not a key"
    with pytest.raises(KeyUnavailable, match="not 32 bytes") as caught:
        keys.current()
    assert "not a key" not in str(caught.value)


def test_a_vault_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.keyvault.secrets", None)
    with pytest.raises(Unsupported, match="pip install azure-keyvault-secrets"):
        open_keys("vault:https://x.vault.azure.net#checkpoints")


def test_sources(tmp_path: Path) -> None:
    assert open_keys("") is None
    path = tmp_path / "keys"
    path.write_text(new_key("a"))
    path.chmod(0o600)
    keys = open_keys(f"file:{path}")
    assert keys is not None
    assert keys.current().id == "a"
    for source in ("keys.txt", "vault:https://x", "file:"):
        with pytest.raises(BadRequest, match="source of keys"):
            open_keys(source)


def test_new_keys_by_the_command() -> None:
    argv = [sys.executable, "-m", "singularity_proxy.checkpoint", "new-key", "k1"]
    lines = {
        subprocess.run(argv, env=os.environ, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    }
    assert len(lines) == 2
    for line in lines:
        assert ListedKeys(line, "x").current().id == "k1"
