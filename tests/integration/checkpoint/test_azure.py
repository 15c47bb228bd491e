"""What is special about Azure Blob: credentials, URLs, and a service that fails."""

from __future__ import annotations

import base64
import gc
import hashlib
import hmac
import json
import os
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.saving.writer import Request
from singularity_proxy.checkpoint.stores.azure import AzureStore, parse_url
from singularity_proxy.checkpoint.stores.base import Moved
from singularity_proxy.checkpoint.stores.urls import open_store
from singularity_proxy.errors import BadRequest, StoreRefused, StoreUnavailable
from support.azurite import ACCOUNT, KEY, Azurite
from support.checkpoint_data import noise
from support.store_faults import FaultProxy

# azure-core does not close the answer of a download that it is about to ask for again.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
QUICK = {"backoff_s": 0.01, "connect_timeout_s": 2.0, "read_timeout_s": 2.0, "retries": 2}


@pytest.fixture
def server(azurite: Callable[[], Azurite]) -> Azurite:
    server = azurite()
    open_store(f"{server.url}/faults", **server.options).close()
    return server


@pytest.fixture
def proxy(server: Azurite) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every store of a test is closed after it, also when it fails."""
    stores: list[AzureStore] = []
    original = AzureStore.__init__

    def remember(self: AzureStore, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        stores.append(self)

    monkeypatch.setattr(AzureStore, "__init__", remember)
    yield
    for store in stores:
        store.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # here, where it is known why


def through(proxy: FaultProxy, prefix: str, **options: object) -> AzureStore:
    url = f"http://127.0.0.1:{proxy.port}/{ACCOUNT}/faults/{prefix}"
    return AzureStore(url, account_key=KEY, **{**QUICK, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "abs://acct.blob.core.windows.net/con/a/b?sv=1&sig=x%2By",
            ("https://acct.blob.core.windows.net", "con", "a/b", "sv=1&sig=x%2By"),
        ),
        (
            "https://acct.blob.core.windows.net/con",
            ("https://acct.blob.core.windows.net", "con", "", ""),
        ),
        (
            "http://127.0.0.1:10000/devstoreaccount1/con/p/",
            ("http://127.0.0.1:10000/devstoreaccount1", "con", "p", ""),
        ),
    ],
)
def test_urls(url: str, expected: tuple[str, ...]) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "abs://acct.blob.core.windows.net",
        "abs://acct.blob.core.windows.net/?sig=topsecret",
        "abs://user:topsecret@acct.blob.core.windows.net/con",
        "abs://acct.blob.core.windows.net/con/a/../../b?sig=topsecret",
    ],
)
def test_urls_that_name_no_container(url: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_url(url)
    assert "topsecret" not in caught.value.message


@pytest.mark.parametrize("fault", ["busy", "hang", "refuse"])
def test_a_service_that_fails_is_one_sentence(proxy: FaultProxy, fault: str) -> None:
    """At each stage of a save; what was listed before stays, and the save works afterwards."""
    tries = 2 if fault == "hang" else 3
    wait_s = 1.0 if fault == "hang" else 2.0
    store = through(proxy, f"all-{fault}", retries=tries - 1, read_timeout_s=wait_s)
    box = Checkpoints(store, "alice")
    part = Part("x", "scratch", data=noise(100_000, 1))
    first = box.save(Request("s", 1, "files"), [part])
    part = Part("x", "scratch", data=noise(100_000, 2))
    steps = ("save.registered", "save.pinned", "save.manifest")
    for step in steps[1:2] if fault == "hang" else steps:

        def fail(name: str) -> None:
            if name == step:  # noqa: B023
                proxy.mode = fault

        with pytest.raises(StoreUnavailable) as caught:
            box.save(Request("s", 1, "files", name="n"), [part], on_step=fail)
        what = {
            "busy": f"answered 503 ServerBusy, tried {tries} times",
            "hang": f"did not answer in time (tried {tries} times)",
            "refuse": f"cannot be reached (tried {tries} times)",
        }[fault]
        url = f"http://127.0.0.1:{proxy.port}/{ACCOUNT}/faults/all-{fault}"
        assert caught.value.message == (
            f"checkpoint 'n' of session s was not made: the checkpoint store {url} {what}; "
            "older checkpoints were kept"
        )
        with pytest.raises(StoreUnavailable):
            box.list("s")
        proxy.mode = "pass"
        assert box.list("s") == [first]
        assert box.verify("s") == 1
    second = box.save(Request("s", 1, "files"), [part])
    assert box.list("s") == [first, second]
    box.collect(spare_s=0, dead_after_s=-1)
    assert box.verify("s", first.id) == box.verify("s", second.id) == 1


def test_short_failures_are_bridged(proxy: FaultProxy) -> None:
    """Two requests in a row fail, whichever they are: nobody notices."""
    box = Checkpoints(through(proxy, "short"), "alice")
    part = Part("x", "scratch", data=noise(100_000, 1))

    def fail(name: str) -> None:
        proxy.mode, proxy.left = "busy", 2

    for _ in range(2):
        box.save(Request("s", 1, "files"), [part], on_step=fail)
    proxy.mode = "pass"
    assert len(box.list("s")) == 2
    assert box.verify("s") == 1


def test_a_lost_answer_is_not_taken_for_a_lost_race(proxy: FaultProxy) -> None:
    """The swap was done, its answer lost, and the request repeated: the condition fails then, and
    the object is our own."""
    store = through(proxy, "lost")
    proxy.mode, proxy.left = "lose", 1
    first = store.swap("u/head", b"one", None)
    assert store.read("u/head") == (b"one", first)
    proxy.mode, proxy.left = "lose", 1
    second = store.swap("u/head", b"two", first)
    assert store.read("u/head") == (b"two", second)
    with pytest.raises(Moved):
        store.swap("u/head", b"three", first)
    for step in ("save.registered", "save.manifest"):  # the next swap is the head's

        def lose(name: str) -> None:
            if name == step:  # noqa: B023
                proxy.mode, proxy.left = "lose", 1

        box = Checkpoints(store, "alice")
        saved = box.save(Request("s", 1, "files"), [Part("x", "record", data=b"1")], on_step=lose)
        assert box.list("s")[-1] == saved
    assert len(box.list("s")) == 2


def test_a_transfer_that_is_cut_is_repeated(proxy: FaultProxy) -> None:
    store = through(proxy, "cut")
    data = noise(3 << 20, 1)
    proxy.mode, proxy.left = "lose", 1
    store.put("u/a", [data])
    proxy.mode, proxy.left = "lose", 1
    assert store.get("u/a") == data


def test_wrong_keys_are_told_without_naming_them(server: Azurite) -> None:
    wrong = base64.b64encode(b"wrong key" * 4).decode()
    store = open_store(f"{server.url}/faults/x", account_key=wrong, **QUICK)
    with pytest.raises(StoreRefused) as caught:
        store.put("u/a", [b"x"])
    assert wrong not in str(caught.value)
    assert "does not take these credentials" in caught.value.message


def test_a_container_that_is_not_there(server: Azurite) -> None:
    store = open_store(f"{server.url}/no-such-container/x", account_key=KEY, **QUICK)
    for call in (lambda: store.get("u/a"), lambda: list(store.list("u/"))):
        with pytest.raises(StoreUnavailable, match="404 ContainerNotFound"):
            call()


def sas(permissions: str, minutes: int = 10) -> str:
    from azure.storage.blob import generate_container_sas

    return str(
        generate_container_sas(
            ACCOUNT,
            "faults",
            account_key=KEY,
            permission=permissions,
            expiry=datetime.now(timezone.utc) + timedelta(minutes=minutes),
        )
    )


def test_a_sas_in_the_url(server: Azurite) -> None:
    """As papermill writes it. All that is needed: read, add, create, write, delete, list."""
    store = open_store(f"{server.url}/faults/sas?{sas('racwdl')}", **QUICK)
    box = Checkpoints(store, "alice")
    box.save(Request("s", 1, "files"), [Part("x", "scratch", data=noise(50_000))])
    assert box.verify("s") == 1
    box.collect(spare_s=0)
    assert "sig=" not in store.url
    reader = Checkpoints(
        open_store(f"{server.url}/faults/sas", sas_token=sas("rl"), **QUICK), "alice"
    )
    assert len(reader.list("s")) == 1
    for token in (sas("rl"), sas("racwdl", minutes=-5)):
        refused = open_store(f"{server.url}/faults/sas?{token}", **QUICK)
        with pytest.raises(StoreRefused) as caught:
            refused.put("u/a", [b"x"])
        assert "sig=" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AZURE_STORAGE_KEY", KEY),
        ("AZURE_STORAGE_CONNECTION_STRING", f"AccountName={ACCOUNT};AccountKey={KEY}"),
    ],
)
def test_credentials_of_the_environment(
    server: Azurite, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    store = open_store(f"{server.url}/faults/env", **QUICK)
    store.put("u/a", [b"x"])
    assert store.get("u/a") == b"x"
    with pytest.raises(BadRequest):
        open_store(f"{server.url}/faults/env", connection_string="AccountName=x")


class Token:
    """What azure-identity would give: a token that Azurite takes (it does not check signatures)."""

    def __init__(self, audience: str = "https://storage.azure.com") -> None:
        self._audience = audience

    def get_token(self, *scopes: str, **_: object) -> object:
        from azure.core.credentials import AccessToken

        now = int(time.time())
        claims = {
            "aud": self._audience,
            "iss": "https://sts.windows.net/00000000-0000-0000-0000-000000000000/",
            "nbf": now - 60,
            "iat": now - 60,
            "exp": now + 600,
        }
        parts = [json.dumps(each).encode() for each in ({"alg": "HS256", "typ": "JWT"}, claims)]
        text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
        signature = hmac.new(b"x", text, hashlib.sha256).digest()
        token = text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
        assert scopes == ("https://storage.azure.com/.default",)
        return AccessToken(token.decode(), now + 600)


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TokenCredential, and DefaultAzureCredential when nothing else is given."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext"
    argv = [*command.split(), "subjectAltName=IP:127.0.0.1", "-out", str(cert), "-keyout", str(key)]
    subprocess.run(argv, check=True, capture_output=True)
    with Azurite("--oauth", "basic", "--cert", str(cert), "--key", str(key)) as server:
        url = server.url.replace("http://", "https://") + "/tokens/x"
        more = {**QUICK, "connection_verify": str(cert), "create_container": True}
        store = open_store(url, credential=Token(), **more)
        store.put("u/a", [b"x"])
        assert store.get("u/a") == b"x"
        with pytest.raises(StoreRefused):
            open_store(url, credential=Token("https://elsewhere"), **more)
        import azure.identity

        monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Token)
        for name in [n for n in os.environ if n.startswith("AZURE_STORAGE")]:
            monkeypatch.delenv(name)
        default = open_store(url, **more)
        assert default.get("u/a") == b"x"
