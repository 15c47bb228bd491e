"""Every test here that asks for `stores` runs on each kind of store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.azurite import Azurite
from support.checkpoint_stores import KINDS, StoreBox, store_box
from support.google_stand_in import GoogleStandIn
from support.s3_emulator import S3Emulator

EMULATORS = {"azurite": Azurite, "s3": S3Emulator, "google": GoogleStandIn}


@pytest.fixture(scope="session")
def emulator() -> Iterator[Callable[[str], Any]]:
    """Starts an emulator when the first test needs it; one of each kind for all."""
    servers: dict[str, Any] = {}

    def server(name: str) -> Any:
        if name not in servers:
            servers[name] = EMULATORS[name]().__enter__()
        return servers[name]

    yield server
    for each in servers.values():
        each.__exit__()


@pytest.fixture(scope="session")
def azurite(emulator: Callable[[str], Any]) -> Callable[[], Azurite]:
    return lambda: emulator("azurite")


@pytest.fixture(params=KINDS)
def stores(
    request: pytest.FixtureRequest, tmp_path: Path, emulator: Callable[[str], Any]
) -> Iterator[StoreBox]:
    """An empty store of each kind, with and without encryption."""
    box = store_box(request.param, tmp_path, emulator)
    yield box
    box.close()


@pytest.fixture
def folder_store(tmp_path: Path, emulator: Callable[[str], Any]) -> Iterator[StoreBox]:
    """A folder, for what does not depend on the kind."""
    box = store_box("folder-encrypted", tmp_path, emulator)
    yield box
    box.close()
