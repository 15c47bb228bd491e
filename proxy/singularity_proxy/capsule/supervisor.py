"""Keeps one long-running part of a platform going: waits for its end and starts it again.

The node agent below the scheduler service, and JupyterHub, its proxy and the service below
``jupyter singularity up``, are all kept by `keep_running`; only their `RestartPolicy` differs.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from singularity_proxy.errors import SingularityError, Unavailable

LOOK_S = 1.0
"""Pause between two looks at a part that answers."""

REFUSED_S = 0.1
"""The same at one that refuses connections."""

MISSES = 3
"""A part is silent when so many looks in a row had no answer: one alone may be due to a keeper that
was stopped itself meanwhile, or to a machine that slept."""


@dataclass(frozen=True)
class RestartPolicy:
    """How often a part is started again, and after which pauses."""

    limit: int = 0
    """Starts within `within_s` at which the part was not well before it is given up, or, however
    long they take, starts in a row at which it did not answer once; 0: it is never given up. One
    that was well and is killed from outside is started again as often as that happens."""
    within_s: float = 60.0
    """Window of `limit`, in seconds."""
    first_pause_s: float = 0.1
    """Pause before a start; it doubles with each part that ended within `steady_s` of its start, or
    before it had answered."""
    longest_pause_s: float = 5.0
    steady_s: float = 3.0
    """A part that went on for so long was well: the next one is started after the first pause."""


class GaveUp(Unavailable):
    """A part ended more often than its policy allows; `fields["part"]` is its name."""


class Part(Protocol):
    """What `keep_running` keeps running."""

    @property
    def name(self) -> str:
        """For people, with its article: "the scheduler service"."""

    @property
    def answered(self) -> bool:
        """Whether the part has answered since it was started last."""

    async def start(self) -> None:
        """Find the part or start it; returns when it is there. Raises `SingularityError`."""

    async def ended(self) -> str:
        """Wait until the part has ended; how, in the past tense: "was killed (SIGKILL)"."""


class Restarts:
    """Counts the starts of one part against its policy."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self.policy = policy
        self._clock = clock
        self._starts: deque[float] = deque()
        self._short_lived = 0
        self._in_vain = -1  # a part that nobody started again yet may not have been looked at
        self._started = clock()

    @property
    def were_all_in_vain(self) -> bool:
        """Whether the part did not answer at any of as many starts in a row as are allowed."""
        return 0 < self.policy.limit <= self._in_vain

    def next_pause(self, answered: bool) -> float | None:
        """Count one more start; seconds to wait before it, None when there were too many.
        `answered`: whether the part that has ended had answered before."""
        now = self._clock()
        self._in_vain = 0 if answered else self._in_vain + 1
        if self.were_all_in_vain:
            return None
        well = answered and now - self._started >= self.policy.steady_s
        if well:
            self._short_lived = 0
        else:
            while self._starts and now - self._starts[0] >= self.policy.within_s:
                self._starts.popleft()
            if self.policy.limit and len(self._starts) >= self.policy.limit:
                return None
            self._starts.append(now)
            self._short_lived += 1
        doubled = self.policy.first_pause_s * 2.0 ** min(self._short_lived, 16)
        pause = min(doubled, self.policy.longest_pause_s)
        self._started = now + pause
        return pause


async def keep_running(
    part: Part, policy: RestartPolicy, tell: Callable[[str, bool], None]
) -> NoReturn:
    """Start `part` again whenever it ends, until cancelled.

    `tell(how, again)` hears of each end, and of each start that failed; `again`: whether it is
    started again. Raises `GaveUp` with a sentence when it ended too often for `policy`.
    """
    restarts = Restarts(policy)
    while True:
        how = await part.ended()
        answered = part.answered
        while True:
            pause = restarts.next_pause(answered)
            tell(how, pause is not None)
            if pause is None:
                often = f"started again {policy.limit} times"
                vain = restarts.were_all_in_vain
                said = "and did not answer once" if vain else f"within {policy.within_s:g} s"
                raise GaveUp(f"{part.name} {how}, after it was {often} {said}", part=part.name)
            answered = False
            await asyncio.sleep(pause)
            try:
                await part.start()
                break
            except SingularityError as error:
                how = f"could not be started ({error.message})"
            except OSError as error:
                how = f"could not be started ({error})"


async def wait_for_silence(
    answers: Callable[[float], Awaitable[bool]], allowed_s: Callable[[], float]
) -> None:
    """Look at a part until it has not answered for about `allowed_s()` seconds, asked anew at each
    look. `answers(seconds)`: whether it answers within that time; it may return at once."""
    missed = 0
    while missed < MISSES:
        if await _answers_within(answers, allowed_s() / MISSES):
            missed = 0
            await asyncio.sleep(LOOK_S)
        else:
            missed += 1


async def _answers_within(answers: Callable[[float], Awaitable[bool]], seconds: float) -> bool:
    """Look at least once, and again and again while the part refuses connections."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not await answers(max(until - loop.time(), min(seconds, LOOK_S))):
        if loop.time() >= until:
            return False
        await asyncio.sleep(REFUSED_S)
    return True
