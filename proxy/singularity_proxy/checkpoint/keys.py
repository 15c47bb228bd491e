"""The keys that checkpoints are encrypted with: a file, an environment variable or Azure Key Vault.

A *master key* is 32 bytes with an id. Each user's keys are derived from it, so one user's key says
nothing about another's. A checkpoint names the id of its master key: a new one is used for what is
saved from then on, and older checkpoints stay readable as long as the provider has their keys.
No key ever stands in a message, a log, a manifest or the `repr` of an object.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from singularity_proxy.errors import BadRequest, KeyUnavailable, Unsupported

KEY_BYTES = 32
VARIABLE = "SINGULARITY_CHECKPOINT_KEYS"

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class MasterKey:
    """One master key."""

    id: str
    secret: bytes = field(repr=False)

    def derive(self, user: str, purpose: str) -> bytes:
        """32 bytes for one user and one purpose (HKDF with SHA-256, RFC 5869)."""
        try:
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        except ImportError:
            raise missing_library("cryptography") from None
        info = f"jupyter-singularity checkpoint 1\0{purpose}\0{user}".encode()
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(self.secret)


class KeyProvider(ABC):
    """Where master keys come from. Called by writers (`current`) and readers (`get`)."""

    @abstractmethod
    def current(self) -> MasterKey:
        """The key for what is saved now. Raises KeyUnavailable."""

    @abstractmethod
    def get(self, id: str) -> MasterKey:
        """The key of an older checkpoint. Raises KeyUnavailable."""


class ListedKeys(KeyProvider):
    """Keys from text: one a line (or separated by commas), `ID BASE64`, the current one first.
    Empty lines and lines that begin with # do not count."""

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        self._keys: dict[str, MasterKey] = {}
        for number, line in enumerate(text.replace(",", "\n").splitlines(), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            key = _parse(words)
            if key is None or key.id in self._keys:
                raise BadRequest(
                    f"key {number} in {where} is not 'ID BASE64' with 32 bytes and an id of its "
                    "own; make one with: python -m singularity_proxy.checkpoint new-key"
                )
            self._keys[key.id] = key

    def current(self) -> MasterKey:
        for key in self._keys.values():
            return key
        raise KeyUnavailable(f"{self._where} holds no key; nothing was saved")

    def get(self, id: str) -> MasterKey:
        try:
            return self._keys[id]
        except KeyError:
            raise KeyUnavailable(
                f"{self._where} has no key '{id}'; put it back to read what it encrypted", key=id
            ) from None


class FileKeys(ListedKeys):
    """Keys in a file of the process's own user that nobody else may read."""

    def __init__(self, path: str) -> None:
        try:
            with open(path, encoding="utf-8") as file:
                info = os.fstat(file.fileno())
                if info.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(info.st_mode) & 0o077:
                    raise KeyUnavailable(
                        f"the key file {path} may be read by others; make it its owner's alone: "
                        f"chmod 600 {path}"
                    )
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not text"
            raise KeyUnavailable(f"the key file {path} cannot be read ({why})") from None
        super().__init__(text, f"the key file {path}")


class EnvironmentKeys(ListedKeys):
    """Keys in an environment variable, separated by commas or newlines."""

    def __init__(self, variable: str = VARIABLE) -> None:
        if not os.environ.get(variable, "").strip():
            raise KeyUnavailable(f"the environment variable {variable} holds no key")
        super().__init__(os.environ[variable], f"the environment variable {variable}")


class KeyVault(ABC):
    """What is asked of a vault: the versions of one secret."""

    @abstractmethod
    def secret(self, version: str | None) -> tuple[str, str]:
        """(version, value) of one version, or of the newest. Raises KeyUnavailable."""


class AzureKeyVault(KeyVault):
    """One secret in Azure Key Vault, by azure-keyvault-secrets and DefaultAzureCredential.

    `client` replaces the connection in tests.
    """

    def __init__(self, url: str, name: str, client: Any = None) -> None:
        self._url, self._name = url, name
        self._client = client or self._connect()

    def _connect(self) -> Any:
        try:
            from azure.identity import DefaultAzureCredential
            from azure.keyvault.secrets import SecretClient
        except ImportError:
            raise missing_library("azure-keyvault-secrets") from None
        return SecretClient(self._url, DefaultAzureCredential())

    def secret(self, version: str | None) -> tuple[str, str]:
        try:
            found = self._client.get_secret(self._name, version=version)
            return str(found.properties.version), str(found.value)
        except Exception as error:  # the library has many; none may carry the secret on
            raise KeyUnavailable(
                f"Key Vault {self._url} did not give secret '{self._name}' "
                f"({type(error).__name__}); nothing was saved or read"
            ) from None


class VaultKeys(KeyProvider):
    """Keys that are the versions of one secret in a vault: each is 32 bytes in base64, its version
    the key's id. A new version of the secret is the next current key."""

    def __init__(self, vault: KeyVault) -> None:
        self._vault = vault
        self._known: dict[str, MasterKey] = {}

    def current(self) -> MasterKey:
        return self._key(*self._vault.secret(None))

    def get(self, id: str) -> MasterKey:
        return self._known.get(id) or self._key(*self._vault.secret(id))

    def _key(self, version: str, value: str) -> MasterKey:
        key = _parse([version, value])
        if key is None:
            raise KeyUnavailable(f"version {version} of the secret is not 32 bytes in base64")
        return self._known.setdefault(version, key)


def new_key(id: str) -> str:
    """A line for a key file."""
    return f"{id} {base64.b64encode(os.urandom(KEY_BYTES)).decode()}"


def open_keys(source: str) -> KeyProvider | None:
    """The provider that a setting names: empty (no encryption), `file:PATH`, `env:VARIABLE` or
    `vault:HTTPS-URL#SECRET`. Called by the node agent at start."""
    if not source:
        return None
    kind, _, rest = source.partition(":")
    if kind == "file" and rest:
        return FileKeys(rest)
    if kind == "env":
        return EnvironmentKeys(rest or VARIABLE)
    if kind == "vault" and "#" in rest:
        url, _, name = rest.partition("#")
        return VaultKeys(AzureKeyVault(url, name))
    raise BadRequest(
        f"'{kind}' is no source of keys; use file:PATH, env:VARIABLE or vault:https://NAME.vault."
        "azure.net#SECRET"
    )


def missing_library(name: str, extra: str = "") -> Unsupported:
    """The sentence about a library that is not installed, which `extra` brings."""
    extra = extra or ("azure" if name.startswith("azure") else "store")
    if name == "azure-keyvault-secrets":
        return Unsupported(f"keys from Azure Key Vault need {name}: pip install {name}")
    return Unsupported(
        f"checkpoints need {name}, which is not installed: "
        f"pip install 'jupyter-singularity[{extra}]'"
    )


def _parse(words: list[str]) -> MasterKey | None:
    if len(words) != 2 or not _ID.fullmatch(words[0]):
        return None
    try:
        secret = base64.b64decode(words[1], validate=True)
    except (binascii.Error, ValueError):
        return None
    return MasterKey(words[0], secret) if len(secret) == KEY_BYTES else None
