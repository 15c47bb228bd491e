"""Simulated ranks behind simulated device proxies, in a time that costs nothing.

A rank runs a program: it computes, contributes to collectives, uses their results, waits for others
outside of the device. Everything that a barrier may meet, and nothing of torch.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from singularity_proxy.errors import Unavailable

T = TypeVar("T")


class _NoWaiting(selectors.DefaultSelector):
    """Instead of waiting, time goes on."""

    loop: VirtualTime

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("every task waits for another one: nothing will happen any more")
        if timeout:
            self.loop.now += timeout
        return super().select(0)


class _AnyOrder(deque[asyncio.Handle]):
    """What a loop has to call next: any of it, as `chance` has it."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def popleft(self) -> asyncio.Handle:
        number = self._chance.randrange(len(self))
        chosen = self[number]
        del self[number]
        return chosen


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop whose seconds pass at once. `chance`: of what is due at one moment, any comes first;
    without it, what became due first."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.now = 0.0
        selector = _NoWaiting()
        selector.loop = self
        super().__init__(selector)
        if chance is not None:
            self._ready = _AnyOrder(chance)

    def time(self) -> float:
        return self.now


def run(work: Coroutine[Any, Any, T], chance: random.Random | None = None) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualTime(chance)) as runner:
        return runner.run(work)


# ---- programs


@dataclass(frozen=True)
class Compute:
    seconds: float


@dataclass(frozen=True)
class Collective:
    """The rank contributes; `members` are world ranks. A pair with `message` is a send or recv."""

    key: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class Use:
    """The rank needs the results of what it contributed to so far under `key`."""

    key: str


@dataclass(frozen=True)
class Meet:
    """All of `members` wait for each other outside of the device (a store, gloo)."""

    name: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class Die:
    pass


Step = Compute | Collective | Use | Meet | Die


_CALL_S = 0.0002

_DELAYS_S = (0.0, _CALL_S, 0.003, 0.03)
"""What a message or a thread's next turn takes, when a test asks for chance."""


@dataclass
class World:
    """What ranks share: who contributed what, and who arrived where. `chance`: messages and threads
    take their time, as it has it."""

    programs: Sequence[Sequence[Step]]
    chance: random.Random | None = None
    contributed: dict[str, dict[int, int]] = field(default_factory=dict)
    arrived: dict[str, set[int]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    dead: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for rank, program in enumerate(self.programs):
            for step in program:
                if isinstance(step, Collective):
                    assert rank in step.members
                    self.contributed.setdefault(step.key, dict.fromkeys(step.members, 0))

    def notify(self) -> None:
        event, self.changed = self.changed, asyncio.Event()
        event.set()

    async def take_time(self, usually_s: float = 0.0) -> None:
        """Let a message be on its way, or a thread that was woken wait for a processor."""
        seconds = self.chance.choice(_DELAYS_S) if self.chance else usually_s
        if seconds:
            await asyncio.sleep(seconds)

    async def wait_for_change(self) -> None:
        """Wait until something has changed and the thread that waits runs again."""
        await self.changed.wait()
        await self.take_time()

    def has(self, key: str, number: int) -> bool:
        return min(self.contributed[key].values()) >= number

    def forget(self, rank: int) -> None:
        """The agent has seen that the rank died: whoever waits for it fails."""
        self.dead.add(rank)
        for key in [k for k, ranks in self.contributed.items() if rank in ranks]:
            del self.contributed[key]
        self.notify()


class Rank:
    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        self.proxy: Proxy | None = None
        self.position = 0
        self.waits_for = ("", 0)
        self.stopped = self.ended = self.failed = False
        self.reached_at: float | None = None

    def groups(self) -> list[str]:
        return [k for k, ranks in self.world.contributed.items() if self.rank in ranks]

    def behind_targets(self) -> bool:
        assert self.proxy is not None
        assert self.proxy.targets is not None
        mine = self.world.contributed
        return any(mine[k][self.rank] < self.proxy.targets.get(k, 0) for k in self.groups())

    @property
    def blocked(self) -> bool:
        key, number = self.waits_for
        return bool(key) and key in self.world.contributed and not self.world.has(key, number)

    async def _may_stop(self, *, cheap: bool) -> None:
        """Called between two records."""
        while True:
            proxy = self.proxy
            if proxy is None or proxy.targets is None or not self.groups() or self.behind_targets():
                self.reached_at = None
                break
            now = asyncio.get_running_loop().time()
            if self.reached_at is None:
                self.reached_at = now
            if not cheap and now < self.reached_at + proxy.grace_s:
                break
            self.stopped = True
            await self.world.wait_for_change()
        self.stopped = False

    async def run(self) -> None:
        for step in self.world.programs[self.rank]:
            await self._may_stop(cheap=isinstance(step, (Use, Meet)))
            if isinstance(step, Compute):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Collective):
                if step.key not in self.world.contributed:
                    self.failed = True
                    break
                self.world.contributed[step.key][self.rank] += 1
                self.world.notify()
            elif isinstance(step, Use):
                if not await self._use(step.key):
                    self.failed = True
                    break
            elif isinstance(step, Meet):
                self.world.arrived.setdefault(step.name, set()).add(self.rank)
                self.world.notify()
                while not self.world.arrived[step.name] >= set(step.members) - self.world.dead:
                    # An empty queue is a record boundary: it may stop here.
                    await self._may_stop(cheap=True)
                    if not self.world.arrived[step.name] >= set(step.members) - self.world.dead:
                        await self.world.wait_for_change()
            elif isinstance(step, Die):
                self.ended = True
                self.world.notify()
                await asyncio.sleep(0.3)  # until somebody notices
                self.world.forget(self.rank)
                return
            self.position += 1
        self.ended = True  # and it leaves its groups
        self.world.notify()

    async def _use(self, key: str) -> bool:
        if key not in self.world.contributed:
            return False
        self.waits_for = (key, self.world.contributed[key][self.rank])
        while self.blocked:
            await self.world.wait_for_change()
        self.waits_for = ("", 0)
        if key not in self.world.contributed:
            return False
        await self._may_stop(cheap=True)
        return True


class Proxy:
    """A `coordinator.Stoppable` over simulated ranks. `fails_at`: the call at which it is gone."""

    def __init__(self, world: World, ranks: Sequence[Rank], fails_at: int = 0) -> None:
        self.world, self.ranks, self.fails_at = world, list(ranks), fails_at
        self.targets: dict[str, int] | None = None
        self.grace_s = 0.0
        self.calls = 0
        for rank in ranks:
            rank.proxy = self

    def _called(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            self.targets = None  # the process is gone, and what it held with it
            self.world.notify()
            raise Unavailable("the other process closed the connection")

    def _answer(self) -> dict[str, Any]:
        groups: dict[str, dict[str, int]] = {}
        open_: set[str] = set()
        held = True
        for rank in self.ranks:
            if rank.ended:
                continue
            for key in rank.groups():
                count = self.world.contributed[key][rank.rank]
                groups.setdefault(key, {})[str(rank.rank)] = count
                if not self.world.has(key, count):
                    open_.add(key)
            if rank.groups() and not (rank.stopped or rank.blocked):
                held = False
        devices = {key: {r: int(r) for r in at} for key, at in groups.items()}
        sizes = {key: len(self.world.contributed[key]) for key in groups}
        return {
            "groups": groups,
            "open": sorted(open_),
            "held": held,
            "devices": devices,
            "sizes": sizes,
        }

    async def barrier_ask(self) -> dict[str, Any]:
        await self.world.take_time(_CALL_S)
        self._called()
        answer = self._answer()
        await self.world.take_time()
        return answer

    async def barrier_hold(
        self, targets: Mapping[str, int], deadline_s: float, grace_s: float
    ) -> dict[str, Any]:
        await self.world.take_time(_CALL_S)
        self._called()
        self.targets, self.grace_s = dict(targets), grace_s
        self.world.notify()
        clock = asyncio.get_running_loop().time
        until = clock() + deadline_s
        while not (answer := self._answer())["held"] and clock() < until:
            await asyncio.sleep(0.0005)
        await self.world.take_time()
        return answer

    async def barrier_release(self) -> dict[str, Any]:
        await self.world.take_time()
        self.targets = None
        self.world.notify()
        return {}
