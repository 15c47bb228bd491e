"""How an agent puts another bridge in the place of one that ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from singularity_proxy.errors import SingularityError
from singularity_scheduler.agent.ranks import bridges
from singularity_scheduler.agent.ranks.bridges import BridgeKeeper
from singularity_scheduler.agent.sessions.record import GangPart
from support.elastic_ranks import run


def test_a_port_that_somebody_took_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one listens elsewhere, and the other parts are told where."""
    monkeypatch.setattr(bridges, "RETRY_S", 0.0)
    told: list[str] = []
    tried: list[int] = []
    part = GangPart("ab12", 1, 2, "c" * 64, port=5, master_port=6, address="h:5")
    live: Any = SimpleNamespace(
        bridge=None, record=SimpleNamespace(session="s", part=part, alive=True)
    )
    node: Any = SimpleNamespace(
        sessions={"s": live},
        stopping=False,
        try_save=lambda live: None,
        emit=lambda session, type_, bridge: told.append(bridge),
    )
    keeper = BridgeKeeper(node)

    async def start(live: Any, part: GangPart) -> None:
        tried.append(part.port)
        assert len(tried) < 5
        if part.port == 5:
            raise SingularityError("address already in use")
        part.port, part.address = 7, "h:7"

    async def none(session: str) -> None: ...

    monkeypatch.setattr(keeper, "_start", start)
    monkeypatch.setattr(keeper, "_end_strays", none)
    run(keeper._replace(live))
    assert told == ["h:7"]
    assert (part.port, part.master_port) == (7, 6)
