"""What an agent keeps of a barrier over all parts of a gang."""

from __future__ import annotations

from asyncio import sleep
from typing import Any

from singularity_proxy.elastic.coordinator import View
from singularity_scheduler.agent.ranks.joint import Joint, merged
from support.elastic_ranks import run

QUIET_S = 30.0


def answer(rank: int, count: int, *, held: bool = True, **more: Any) -> dict[str, Any]:
    """Of a device proxy with one rank of four."""
    return {
        "groups": {"a": {str(rank): count}},
        "open": [],
        "names": {"a": "world"},
        "sizes": {"a": 4},
        "devices": {"a": {str(rank): rank % 2}},
        "held": held,
        **more,
    }


def test_the_answers_of_several_proxies_are_those_of_one() -> None:
    messages = {"a": {"1": 7}, "a:0>1": {"1": 3}}
    answers = [answer(0, 7, open=["a"]), answer(1, 7, groups=messages, open=["a", "a:0>1"])]
    whole = merged(answers)
    assert View.read([whole], part=True) == View.read(answers, part=True)
    assert whole["open"] == ["a", "a:0>1"]
    assert whole["devices"] == {"a": {"0": 0, "1": 1}}
    assert whole["held"] is True
    assert merged([answer(0, 7), answer(1, 6, held=False)])["held"] is False
    assert merged([])["groups"] == {}


def test_ranks_go_on_when_nobody_speaks_of_it_and_no_command_needs_them() -> None:
    async def go() -> None:
        quiet: list[str] = []
        joint = Joint(QUIET_S, lambda: quiet.append("it"))
        for _ in range(3):
            joint.heard()
            await sleep(QUIET_S - 1)
        assert quiet == []
        joint.claim()
        await sleep(10 * QUIET_S)
        assert joint.claimed
        joint.heard()  # it does not begin to count while the command waits
        await sleep(2 * QUIET_S)
        assert quiet == []
        joint.unclaim()
        assert not joint.claimed
        await sleep(QUIET_S + 1)
        assert quiet == ["it"]

    run(go())


def test_a_command_that_has_its_turn_lets_go_itself() -> None:
    async def go() -> None:
        quiet: list[str] = []
        joint = Joint(QUIET_S, lambda: quiet.append("it"))
        joint.heard()
        joint.claim()
        joint.use()
        joint.unclaim()
        joint.over()
        await sleep(2 * QUIET_S)
        assert (joint.used, quiet) == (True, [])

    run(go())
