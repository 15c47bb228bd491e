"""USE_LIBUV=0 counts for every store of torch.distributed that does not say itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from singularity_proxy.worker.distributed import stores


class Store:
    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: float = 300,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        self.libuv = use_libuv


@pytest.mark.parametrize(
    ("environ", "more", "options", "libuv"),
    [
        ("0", (), {}, False),
        ("0", (), {"is_master": True}, False),
        ("0", (), {"use_libuv": True}, True),
        ("0", (None, True, 300, True, True, None), {}, False),
        ("0", (None, True, 300, True, True, None, True), {}, True),
        ("1", (), {}, True),
        (None, (), {}, True),
    ],
)
def test_who_decides(
    environ: str | None,
    more: tuple[Any, ...],
    options: dict[str, Any],
    libuv: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("USE_LIBUV", raising=False)
    if environ is not None:
        monkeypatch.setenv("USE_LIBUV", environ)
    monkeypatch.setenv(stores.OPEN, "1")
    ours = type("Ours", (Store,), {"__init__": Store.__init__})
    stores.apply(SimpleNamespace(TCPStore=ours))
    assert ours("127.0.0.1", 0, *more, **options).libuv is libuv
