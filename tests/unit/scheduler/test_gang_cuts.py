"""The commands that store the parts of a gang share one barrier, and what they store is a set."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from singularity_proxy.errors import BarrierFailed, Conflict, NoSpace
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.state.stored import CheckpointRef
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.service.nodes import gang_cuts
from singularity_scheduler.service.nodes.gang_cuts import GangCuts
from singularity_scheduler.service.nodes.gang_sets import GangSets
from support.scheduler_core import whole

BOTH = ("g0", "g1")
WHY = because("suspending", by="ada", why="")


def suspend(session: str, cut: tuple[str, ...] = BOTH) -> ev.Suspend:
    return ev.Suspend(session, f"n{session}", WHY, "user.suspend", 3, 4, cut=cut)


class Barriers:
    """In the place of `gang_barrier.standing`."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[str, ...]]] = []
        self.fails: Exception | None = None


@pytest.fixture
def barriers(monkeypatch: pytest.MonkeyPatch) -> Barriers:
    made = Barriers()

    class Standing:
        def __init__(self, parts: Any, deadline_s: float) -> None:
            self.sessions = tuple(sorted(part.session for part in parts))

        async def __aenter__(self) -> None:
            if made.fails is not None:
                raise made.fails
            made.told.append(("stand", self.sessions))

        async def __aexit__(self, *_: object) -> None:
            made.told.append(("go on", self.sessions))

    monkeypatch.setattr(gang_cuts, "standing", Standing)
    return made


async def store(cuts: GangCuts, action: ev.Suspend, barriers: Barriers, takes: float) -> None:
    async with cuts.standing(action):
        barriers.told.append(("store", (action.session,)))
        await asyncio.sleep(takes)
        barriers.told.append(("stored", (action.session,)))


@pytest.mark.asyncio
async def test_all_stand_from_the_last_that_comes_to_the_last_that_ends(barriers: Barriers) -> None:
    cuts = GangCuts(None)  # type: ignore[arg-type]
    first = asyncio.ensure_future(store(cuts, suspend("g0"), barriers, 0.02))
    await asyncio.sleep(0.02)
    assert barriers.told == []
    await asyncio.gather(first, store(cuts, suspend("g1"), barriers, 0.05))
    await asyncio.sleep(0)
    assert barriers.told[0] == ("stand", BOTH)
    assert barriers.told[-2:] == [("stored", ("g1",)), ("go on", BOTH)]
    both = [store(cuts, suspend(sid), barriers, 0.0) for sid in BOTH]
    await asyncio.gather(*both)  # and once more
    await asyncio.sleep(0)
    assert [what for what, _ in barriers.told].count("go on") == 2


@pytest.mark.asyncio
async def test_when_they_do_not_come_together_each_command_fails_for_it(barriers: Barriers) -> None:
    cuts = GangCuts(None)  # type: ignore[arg-type]
    barriers.fails = BarrierFailed("the ranks did not come to a common place")
    both = [store(cuts, suspend(sid), barriers, 0.0) for sid in BOTH]
    found = await asyncio.gather(*both, return_exceptions=True)
    assert [str(error) for error in found] == ["the ranks did not come to a common place"] * 2
    assert barriers.told == []
    barriers.fails = None
    await asyncio.gather(*(store(cuts, suspend(sid), barriers, 0.0) for sid in BOTH))


@pytest.mark.asyncio
async def test_a_command_that_does_not_come_is_not_waited_for(
    barriers: Barriers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_cuts, "GATHER_S", 0.02)
    cuts = GangCuts(None)  # type: ignore[arg-type]
    with pytest.raises(BarrierFailed, match="because g1 did not come along"):
        await store(cuts, suspend("g0"), barriers, 0.0)


@pytest.mark.asyncio
async def test_what_is_no_cut_waits_for_nobody(barriers: Barriers) -> None:
    cuts = GangCuts(None)  # type: ignore[arg-type]
    await store(cuts, suspend("g0", ()), barriers, 0.0)
    assert [what for what, _ in barriers.told] == ["store", "stored"]


@pytest.mark.asyncio
async def test_a_service_that_stops_lets_go(barriers: Barriers) -> None:
    cuts = GangCuts(None)  # type: ignore[arg-type]
    tasks = [asyncio.ensure_future(store(cuts, suspend(s), barriers, 60.0)) for s in BOTH]
    while [what for what, _ in barriers.told].count("store") < len(BOTH):
        await asyncio.sleep(0)
    await cuts.close()
    assert barriers.told[-1] == ("go on", BOTH)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.asyncio
async def test_nobody_is_stopped_again_before_all_have_ended(barriers: Barriers) -> None:
    """A suspend that comes while the parts are being stored waits for that."""
    cuts = GangCuts(None)  # type: ignore[arg-type]
    first = [asyncio.ensure_future(store(cuts, suspend(sid), barriers, 0.05)) for sid in BOTH]
    while not barriers.told:
        await asyncio.sleep(0)
    assert barriers.told[0] == ("stand", BOTH)
    second = [asyncio.ensure_future(store(cuts, suspend(sid), barriers, 0.0)) for sid in BOTH]
    await asyncio.gather(*first, *second)
    await asyncio.sleep(0)
    assert [what for what, _ in barriers.told if what in ("stand", "go on")] == [
        "stand",
        "go on",
    ] * 2


# -- sets -----------------------------------------------------------------------------------


class Sets:
    """`GangSets` and what it reports."""

    def __init__(self) -> None:
        self.told: list[ev.Event] = []
        self.sets = GangSets(GangCuts(None), self.report)  # type: ignore[arg-type]

    async def report(self, event: ev.Event) -> None:
        self.told.append(event)

    async def store(self, *failing: str) -> list[CheckpointRef | BaseException]:
        """Both parts; what became of each."""

        async def part(session: str) -> CheckpointRef:
            action = ev.TakeCheckpoint(
                session, f"n{session}", WHY, "user.checkpoint", 3, 4, cut=BOTH, set_id="g-3-4"
            )

            async def take() -> CheckpointRef:
                await asyncio.sleep(0.02 if session == "g0" else 0.0)
                if session in failing:
                    raise NoSpace(f"the disk of {session} is full")
                return whole(f"c-{session}")

            return await self.sets.store(action, take)

        return await asyncio.gather(*map(part, reversed(BOTH)), return_exceptions=True)


STORED = (("g0", whole("c-g0")), ("g1", whole("c-g1")))


@pytest.mark.asyncio
async def test_a_set_is_told_of_when_all_of_it_is_stored(barriers: Barriers) -> None:
    it = Sets()
    assert await it.store() == [whole("c-g1"), whole("c-g0")]
    assert it.told == [ev.SetStored("g-3-4", STORED, True)]
    assert barriers.told[0] == ("stand", BOTH)


@pytest.mark.asyncio
@pytest.mark.parametrize("failing", BOTH)
async def test_a_set_of_which_a_part_fails_is_dropped(barriers: Barriers, failing: str) -> None:
    it = Sets()
    found = dict(zip(reversed(BOTH), await it.store(failing), strict=True))
    assert isinstance(found.pop(failing), NoSpace)
    [other] = found.values()
    assert isinstance(other, Conflict)
    assert "another part of its gang could not be stored at the same place" in str(other)
    left = tuple(one for one in STORED if one[0] != failing)
    assert it.told == [ev.SetStored("g-3-4", left, False)]


@pytest.mark.asyncio
async def test_nothing_is_told_where_the_ranks_could_not_be_stopped(barriers: Barriers) -> None:
    barriers.fails = BarrierFailed("the ranks did not come to a common place")
    it = Sets()
    assert [type(error) for error in await it.store()] == [BarrierFailed, BarrierFailed]
    assert it.told == []
