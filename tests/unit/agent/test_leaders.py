"""Which service a node obeys: never one that led before the one it knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, StaleEpoch
from singularity_scheduler.agent.rights.leaders import Leaders


def peer() -> Any:
    return SimpleNamespace(data={})


def said(epoch: int, ledger: str = "one") -> dict[str, Any]:
    return {"leader": {"ledger": ledger, "epoch": epoch}}


def test_an_older_leader_is_refused_on_old_and_new_connections() -> None:
    kept: list[tuple[str, int]] = []
    leaders, old, new = Leaders(None, kept.append), peer(), peer()
    leaders.hello(old, said(3))
    leaders.check(old)
    leaders.hello(new, said(4))
    with pytest.raises(StaleEpoch, match="service of epoch 4 by now; nothing was done"):
        leaders.check(old)
    with pytest.raises(StaleEpoch):
        leaders.hello(old, {})  # it asks again how the node is, as it does now and then
    with pytest.raises(StaleEpoch):
        leaders.hello(peer(), said(3))
    leaders.check(new)
    assert kept == [("one", 3), ("one", 4)]


def test_it_is_known_after_a_restart_of_the_agent() -> None:
    with pytest.raises(StaleEpoch):
        Leaders(("one", 7)).hello(peer(), said(6))


def test_services_of_different_ledgers_are_not_compared() -> None:
    leaders, old, new = Leaders(("one", 7)), peer(), peer()
    leaders.hello(old, said(7))
    leaders.hello(new, said(1, "another"))
    leaders.check(new)
    with pytest.raises(StaleEpoch):
        leaders.check(old)


def test_who_is_no_service_is_not_asked() -> None:
    leaders, somebody = Leaders(("one", 7)), peer()
    leaders.hello(somebody, {"observer": True})
    leaders.check(somebody)


@pytest.mark.parametrize("told", ["yes", {"ledger": 1, "epoch": 1}, {"ledger": "x", "epoch": True}])
def test_a_leader_that_is_none(told: Any) -> None:
    with pytest.raises(BadRequest, match="name of a ledger and an epoch"):
        Leaders().hello(peer(), {"leader": told})


def test_a_leader_that_cannot_be_written_down_is_not_obeyed() -> None:
    def full(leader: tuple[str, int]) -> None:
        raise OSError("no space")

    leaders, mine = Leaders(("one", 1), full), peer()
    with pytest.raises(OSError, match="no space"):
        leaders.hello(mine, said(2))
    assert mine.data == {}
    leaders.hello(mine, said(1))
