"""The stores that the checkpoint tests run on: a folder, emulators, a real account if asked for.

`CHECKPOINT_STORE_TEST_URL` names a container or bucket (and prefix) of a real account, with
credentials as `docs/how-to/azure-blob.md` and `docs/how-to/buckets.md` say; every test works below
a prefix of its own and removes it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.keys import KeyProvider, ListedKeys, new_key
from singularity_proxy.checkpoint.stores.base import ObjectStore
from singularity_proxy.checkpoint.stores.urls import open_store

REAL = "CHECKPOINT_STORE_TEST_URL"
KINDS = ["folder", "folder-encrypted", "azurite", "azurite-encrypted"]
KINDS += ["s3", "s3-encrypted", "google-encrypted"]
if os.environ.get(REAL):
    KINDS.append("real-encrypted")


@dataclass
class StoreBox:
    """One empty place for checkpoints."""

    url: str
    options: dict[str, Any]
    keys: KeyProvider | None
    opened: list[ObjectStore] = field(default_factory=list)

    @property
    def is_folder(self) -> bool:
        return "://" not in self.url

    def open(self, **options: Any) -> ObjectStore:
        """A connection of its own."""
        self.opened.append(open_store(self.url, **{**self.options, **options}))
        return self.opened[-1]

    def user(self, name: str = "alice") -> Checkpoints:
        return Checkpoints(self.open(), name, self.keys)

    def close(self) -> None:
        if not self.is_folder:
            store = self.open()
            for user in list(store.names("")):
                for entry in list(store.list(f"{user}/")):
                    store.delete(entry.key)
        for store in self.opened:
            store.close()


def store_box(kind: str, folder: Path, emulator: Callable[[str], Any]) -> StoreBox:
    """`emulator(name)` is called for the running emulator, when one is needed."""
    keys = ListedKeys(new_key("first"), "the test") if kind.endswith("encrypted") else None
    if kind.startswith("folder"):
        return StoreBox(str(folder / "store"), {}, keys)
    prefix = uuid.uuid4().hex[:12]
    if kind.startswith("real"):
        url, _, query = os.environ[REAL].partition("?")
        return StoreBox(f"{url}/{prefix}" + (f"?{query}" if query else ""), {}, keys)
    server = emulator(kind.removesuffix("-encrypted"))
    if kind.startswith("azurite"):
        return StoreBox(f"{server.url}/checkpoints/{prefix}", server.options, keys)
    return StoreBox(server.url(prefix), server.options, keys)
