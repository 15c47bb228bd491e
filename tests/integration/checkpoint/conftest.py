"""Every test here that asks for `stores` runs on each kind of store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.azurite import Azurite
from support.checkpoint_stores import KINDS, StoreBox, store_box


@pytest.fixture(scope="session")
def azurite() -> Iterator[Callable[[], Azurite]]:
    """Starts the emulator when the first test needs it; one for all."""
    servers: list[Azurite] = []

    def server() -> Azurite:
        if not servers:
            servers.append(Azurite().__enter__())
        return servers[0]

    yield server
    for each in servers:
        each.__exit__()


@pytest.fixture(params=KINDS)
def stores(
    request: pytest.FixtureRequest, tmp_path: Path, azurite: Callable[[], Azurite]
) -> Iterator[StoreBox]:
    """An empty store of each kind, with and without encryption."""
    box = store_box(request.param, tmp_path, azurite)
    yield box
    box.close()


@pytest.fixture
def folder_store(tmp_path: Path, azurite: Callable[[], Azurite]) -> Iterator[StoreBox]:
    """A folder, for what does not depend on the kind."""
    box = store_box("folder-encrypted", tmp_path, azurite)
    yield box
    box.close()
