"""The barrier: all ranks of a session stop where each has taken part in the same collectives.

Such a place is a consistent cut: nothing is on its way between ranks, so their devices may be
parked, moved or saved one by one. It is found in rounds. Each device proxy says how many
collectives its ranks have contributed to, per group; the largest number of each group is the
target. A rank that has reached the targets of all its groups stops where that is cheapest (before
it uses the last result, where a training step has no activations); one that has not goes on until
it has, or until it waits for another rank. What is short then raises a target: the next round. The
numbers only grow, and a rank that stands does not make them grow, so rounds come to an end.

The end is where all stand behind the targets that are held. A rank that higher targets let go is
told as standing until its thread has woken up: where somebody is short of the targets, that
everybody stands and is level says nothing.

In a part of a gang some ranks are on other nodes. Nobody here can stop them, and they may stand for
a barrier of their own, or be parked: what they owe is waited for only as long as something moves.
A rank that still waits for it is moved with its journal, which makes its contributions again.

No I/O of its own: proxies are objects with three calls, time is the running loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from singularity_proxy.errors import BarrierFailed, SingularityError

from .placement import Group

GRACE_S = 0.5
"""So long a rank may go on behind its targets in search of a cheap place to stop."""

POLL_S = 0.001

ROUND_S = 0.02
"""A proxy whose ranks do not all stand answers after this, so that others' news reach it."""

ELSEWHERE_S = 0.5
"""When nothing moved for so long, ranks on other nodes are not waited for."""

NUDGE_S = 1.0
"""When nothing moved for so long, ranks that stand go on to one more collective: somebody may wait
for one of them outside of the device (a store, a file, another backend). And back, and so on."""


class Stoppable(Protocol):
    """A device proxy, as the barrier sees it. Answers are what `View.read` takes."""

    async def barrier_ask(self) -> Mapping[str, Any]:
        """How far its ranks are; holds nothing."""

    async def barrier_hold(
        self, targets: Mapping[str, int], deadline_s: float, grace_s: float
    ) -> Mapping[str, Any]:
        """Stop each rank that has reached `targets` (key of a group -> number) of its groups.

        Answers as soon as every rank with a group stands or waits for another one, or after
        `deadline_s`; ranks stay stopped until higher targets or `barrier_release`. One that stood
        and has not reached `targets` may still be told as standing: it goes on in a moment.
        `grace_s`: how long one may go on behind its targets until it is at a cheap place.
        """

    async def barrier_release(self) -> Mapping[str, Any]:
        """All ranks go on; also when none was held."""


@dataclass
class View:
    """How far all ranks are: the answers of all proxies, put together."""

    contributed: dict[str, dict[int, int]] = field(default_factory=dict)
    """Key of a group -> rank in it -> collectives that the rank contributed to. Messages between
    two of its ranks are counted under a key of their own, "key:2>0"."""
    open: set[str] = field(default_factory=set)
    """Groups in which a rank still waits for a result."""
    names: dict[str, str] = field(default_factory=dict)
    members: dict[str, dict[int, int]] = field(default_factory=dict)
    """Key -> rank -> its virtual device."""
    elsewhere: dict[str, int] = field(default_factory=dict)
    """Key -> how many of its ranks are on other nodes; empty unless this is a part of a gang."""
    stand: bool = True
    """Every rank that has a group is stopped."""

    @classmethod
    def read(cls, answers: Iterable[Mapping[str, Any]], *, part: bool = False) -> View:
        """From answers {"groups": {key: {rank: contributed}}, "open": [key], "names": {key: name},
        "sizes": {key: ranks}, "devices": {key: {rank: virtual device}}, "held": bool}. `part`: of
        a part of a gang; else a rank that no answer has is one that comes or goes."""
        view, sizes = cls(), dict[str, int]()
        for answer in answers:
            for key, ranks in answer["groups"].items():
                mine = view.contributed.setdefault(key, {})
                mine.update({int(rank): int(count) for rank, count in ranks.items()})
            for key, ranks in answer.get("devices", {}).items():
                at = view.members.setdefault(key, {})
                at.update({int(rank): int(v) for rank, v in ranks.items()})
            view.open.update(answer.get("open", ()))
            view.names.update(answer.get("names", {}))
            sizes.update(answer.get("sizes", {}))
            view.stand = view.stand and bool(answer.get("held", False))
        for key, ranks in view.contributed.items():
            group, _, pair = key.partition(":")
            for end in pair.split(">") if pair else ():  # who has not counted a message yet
                if int(end) in view.contributed.get(group, {}):
                    ranks.setdefault(int(end), 0)
            if part:
                view.elsewhere[key] = (2 if pair else sizes[key]) - len(ranks)
        return view

    def targets(self) -> dict[str, int]:
        """What every rank must reach: the farthest one, per group."""
        return {key: max(ranks.values()) for key, ranks in self.contributed.items() if ranks}

    @property
    def level(self) -> bool:
        """All ranks of each group contributed to the same collectives, and all have the results."""
        return not self.open and all(len(set(r.values())) < 2 for r in self.contributed.values())

    def has_reached(self, targets: Mapping[str, int]) -> bool:
        """Whether every rank has come to `targets`, so that none that stands will go on by them."""
        return all(
            count >= targets.get(key, 0)
            for key, at in self.contributed.items()
            for count in at.values()
        )

    @property
    def waits_elsewhere(self) -> bool:
        """A rank waits for a result that one on another node may owe."""
        return any(self.elsewhere.get(key) for key in self.open)

    def advanced_since(self, before: View) -> dict[str, int]:
        """Key -> how many more collectives a rank contributed to, at most."""
        return {
            key: max(
                count - before.contributed.get(key, {}).get(rank, 0) for rank, count in at.items()
            )
            for key, at in self.contributed.items()
            if at
        }

    def groups(self) -> list[Group]:
        """For `placement`."""
        return [
            Group(
                self.names.get(key, ""),
                tuple(v for _, v in sorted(at.items())),
                self.elsewhere.get(key, 0),
            )
            for key, at in self.members.items()
        ]

    def behind(self) -> str:
        """Who keeps the barrier from being reached, for people."""
        for key, ranks in self.contributed.items():
            last, least = max(ranks.values()), min(ranks.values())
            if last > least:
                slow = ", ".join(str(r) for r, count in sorted(ranks.items()) if count < last)
                return f"rank {slow} of group '{self.names.get(key, key)}' has not come to its " + (
                    f"collective {last} yet"
                )
        if self.open:
            key = min(self.open)
            return f"a result in group '{self.names.get(key, key)}' is not there yet"
        return "a rank is in the middle of a long operation"


@dataclass(frozen=True)
class Cut:
    """Where all ranks stand."""

    contributed: dict[str, int]
    """Key of a group -> collectives that each of its ranks contributed to."""
    groups: list[Group]
    rounds: int
    seconds: float
    advanced: dict[str, int]
    """Key of a group -> the most collectives that one of its ranks was still let take part in."""


class Barrier:
    """One barrier of one session. `reach` it, do what it is for, `release`; or use it as a context
    manager around `reach`, which releases in any case. `part`: the session is a part of a gang."""

    def __init__(
        self, proxies: Iterable[Stoppable], *, grace_s: float = GRACE_S, part: bool = False
    ) -> None:
        self._proxies = list(proxies)
        self._grace_s = grace_s
        self._part = part
        self._targets: dict[str, int] = {}

    async def __aenter__(self) -> Barrier:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def reach(self, deadline_s: float) -> Cut:
        """Stop all ranks; at most `deadline_s` seconds. Raises BarrierFailed after everything was
        released when they do not come together, and what a proxy's call raised when that failed.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        view = View()
        try:
            view = asked = View.read(await self._all("barrier_ask"), part=self._part)
            seen = self._targets = view.targets()
            rounds, moved, nudged = 1, began, False
            still = began
            while (left := began + deadline_s - clock()) > 0:
                answers = await self._all("barrier_hold", min(left, ROUND_S), self._grace_s)
                before, view = view, View.read(answers, part=self._part)
                if (view.contributed, view.open) != (before.contributed, before.open):
                    still = clock()
                level = view.level and view.has_reached(self._targets)
                # One that waits may be short of the targets, so nobody may just have been let go.
                alone = view.waits_elsewhere and not nudged and clock() - still > ELSEWHERE_S
                if view.stand and (level or alone):
                    self._targets = view.targets()
                    far = view.advanced_since(asked)
                    return Cut(self._targets, view.groups(), rounds, clock() - began, far)
                if view.targets() != seen:
                    seen, moved, nudged = view.targets(), clock(), False
                elif clock() - moved > NUDGE_S:
                    moved, nudged = clock(), not nudged
                targets = {key: count + nudged for key, count in seen.items()}
                if targets != self._targets:
                    self._targets = targets
                    rounds += 1
                elif view.stand:  # they wait for a result that is being made just now
                    await asyncio.sleep(POLL_S)
            raise BarrierFailed(
                f"the ranks did not come to a common place within {deadline_s:g} s "
                f"({view.behind()}); nothing was changed and all of them go on: try again later",
                seconds=deadline_s,
                contributed=view.contributed,
            )
        except BaseException:
            await self.release()
            raise

    async def join(self, proxy: Stoppable) -> None:
        """Have a proxy that came later hold the ranks that will be attached to it, at the place
        that was reached."""
        self._proxies.append(proxy)
        await proxy.barrier_hold(self._targets, 0.0, 0.0)

    def forget(self, proxy: Stoppable) -> None:
        """The proxy has ended, its ranks are elsewhere."""
        self._proxies.remove(proxy)

    async def release(self) -> None:
        """All ranks go on. A proxy that does not answer any more holds nobody."""
        await asyncio.gather(*(self._let_go(proxy) for proxy in self._proxies))

    async def _let_go(self, proxy: Stoppable) -> None:
        with contextlib.suppress(SingularityError):
            await proxy.barrier_release()

    async def _all(self, call: str, *more: float) -> list[Mapping[str, Any]]:
        """The call's answers of all proxies. The first failure is raised when all have ended, so
        that nothing is held behind a release."""
        first = (self._targets,) if more else ()
        calls = [getattr(proxy, call)(*first, *more) for proxy in self._proxies]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]


async def look(proxies: Iterable[Stoppable]) -> View:
    """How far the ranks are; holds nothing. For a decision before a barrier (a placement)."""
    return View.read(await asyncio.gather(*(proxy.barrier_ask() for proxy in proxies)))
