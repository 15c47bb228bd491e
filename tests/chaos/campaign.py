"""One campaign: a platform, its users at work, the steps of a seed, and the reckoning at the
end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from singularity_proxy.errors import SingularityError

from . import schedule, settle
from .faults import FAULTS
from .notebooks import CsvWriter, Idle, Notes, Training
from .runs import Batch, Ranks, Script
from .schedule import Step
from .subjects import Lost, Subject
from .tab import Closed, KernelReplaced
from .timeline import Timeline, Violation
from .verbs import LONGEST_S, VERBS
from .watch import Watch
from .world import World

WORK: tuple[tuple[type[Subject], ...], ...] = (
    (Training, Idle, Notes),
    (CsvWriter, Ranks),
    (Batch, Script),
)
"""What the first, the second, the third user does; a fourth one does what the first does."""

AT_WORK_S = 180.0
"""How long everybody may take until they are at work."""


@dataclass
class Result:
    """What a campaign found."""

    seed: int
    seconds: float = 0.0
    figures: dict[str, float | None] = field(default_factory=dict)
    by_name: dict[str, int] = field(default_factory=dict)
    """"fault NAME", "verb NAME", "skipped NAME", ... -> how often."""
    violations: list[Violation] = field(default_factory=list)
    service_back: list[float] = field(default_factory=list)
    """Seconds without an answer of the service after each kill of it."""
    kept: Path | None = None
    """Where the logs of a campaign with violations are."""


class Campaign:
    """Runs the steps of `seed` for so many seconds."""

    def __init__(
        self,
        seed: int,
        seconds: float,
        users: int,
        devices: int = 3,
        store_mib: int = 3072,
        say: Callable[[str], None] = print,
        faults: dict[str, int] | None = None,
        verbs: dict[str, int] | None = None,
    ) -> None:
        self.seed, self.seconds = seed, seconds
        self.timeline = Timeline(say)
        self.world = World(self.timeline, users, devices, store_mib)
        decks = (
            schedule.FAULTS if faults is None else faults,
            schedule.VERBS if verbs is None else verbs,
        )
        self.steps = schedule.draw(seed, seconds, *decks)
        self.subjects = self._people(users)

    def _people(self, users: int) -> list[Subject]:
        found: list[Subject] = []
        for number in range(max(users, len(WORK))):
            user = self.world.users[number % users]
            for kind in WORK[number % len(WORK)]:
                if not any(s.user == user and s.kind == kind.kind for s in found):
                    found.append(kind(self.world, user, len(found)))
        return found

    async def run(self, keep: Path) -> Result:
        """The whole campaign; the logs go to `keep` when something was violated."""
        result = Result(self.seed)
        self._follow(keep)
        try:
            await self.world.make()
            await self.world.start()
            await self._run(result, keep)
        finally:
            said = await self.world.stop()
            self.timeline.add("world", f"stopped: {said}")
            settle.look_at_machine(self.world)
            result.violations = self.timeline.violations
            result.by_name = dict(sorted(self.timeline.counts.items()))
            if result.violations:
                result.kept = keep
                self.world.keep_logs(keep)
            await self.world.remove()
        return result

    def _follow(self, keep: Path) -> None:
        shutil.rmtree(keep, ignore_errors=True)
        keep.mkdir(parents=True)
        self.timeline.file = keep / "timeline.txt"

    async def _run(self, result: Result, keep: Path) -> None:
        watch = Watch(self.world, self.subjects)
        watching = asyncio.create_task(watch.run())
        working = [asyncio.create_task(s.live(), name=s.name) for s in self.subjects]
        doing: list[asyncio.Task[None]] = []
        try:
            await self._all_at_work()
            began = time.monotonic()
            self.timeline.add("world", "everybody is at work")
            doing += [asyncio.create_task(self._carry_out(step, began)) for step in self.steps]
            await asyncio.sleep(max(0.0, self.seconds - (time.monotonic() - began)))
            self.world.ending.set()
            self.timeline.add("world", "no more steps")
            await settle.finish(self.world, self.subjects, doing, working)
            result.seconds = time.monotonic() - began
            result.figures = settle.figures(self.world, self.subjects, watch)
            result.service_back = sorted(self.world.service_back)
            watch.growth.write(keep / "growth.json")
        finally:
            watching.cancel()
            for task in (*working, *doing):
                task.cancel()
            await asyncio.gather(watching, *working, *doing, return_exceptions=True)

    async def _all_at_work(self) -> None:
        deadline = time.monotonic() + AT_WORK_S
        while not all(s.session and s.doc for s in self.subjects):
            if time.monotonic() > deadline:
                late = [str(s) for s in self.subjects if not s.doc]
                self.timeline.violate("start", "campaign", f"not at work: {', '.join(late)}")
                return
            await asyncio.sleep(0.2)

    async def _carry_out(self, step: Step, began: float) -> None:
        await asyncio.sleep(max(0.0, began + step.at - time.monotonic()))
        known: dict[str, Any] = {"fault": FAULTS, "verb": VERBS}[step.kind]
        self.timeline.add(step.kind, f"{step} ...")
        try:
            if step.kind == "verb":
                said = await self._within_patience(step, known[step.name])
            else:
                said = await known[step.name](self.world, self.subjects, step)
        except SingularityError as error:
            self.timeline.count(f"refused {step.name}")
            kind = type(error).__name__
            self.timeline.add("refused", f"{step}: {kind}: {error.message}")
            if kind == "SingularityError" and "Error:" in error.message:
                self.timeline.violate("sentences", step.name, error.message)
            return
        except (KernelReplaced, Lost, Closed) as error:  # the subject's own life judges it
            self.timeline.count(f"failed {step.name}")
            self.timeline.add("refused", f"{step}: {type(error).__name__}: {error}")
            return
        except (OSError, TimeoutError) as error:
            self.timeline.count(f"failed {step.name}")
            self.timeline.add("refused", f"{step}: {type(error).__name__}: {error}")
            return
        if not said:
            self.timeline.count(f"skipped {step.name}")
            self.timeline.add(step.kind, f"{step}: nobody was there")
            return
        self.timeline.count(f"{step.kind} {step.name}")
        self.timeline.add(step.kind, f"{step}: {said}")

    async def _within_patience(self, step: Step, verb: Any) -> str:
        """Carry out a verb; one that takes longer than patience allows, in calm seconds, is
        stuck."""
        task = asyncio.create_task(verb(self.world, self.subjects, step))
        began, calm = time.monotonic(), self.world.calm_s
        limit = schedule.CALM_S.get(step.name, 60.0)
        while not task.done():
            await asyncio.wait({task}, timeout=1.0)
            if self.world.calm_s - calm > limit and not task.done():
                text = f"{step} was not answered within {limit:g} calm seconds"
                self.timeline.violate("stuck", step.name, text)
                break
            if time.monotonic() - began > LONGEST_S + limit:
                break
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            raise TimeoutError("given up")
        return str(task.result())


def sum_up(results: Sequence[Result]) -> dict[str, Any]:
    """The figures of several campaigns in one: sums, and the worst of what is no sum."""
    found: dict[str, Any] = {}
    for result in results:
        for key, value in result.figures.items():
            if value is None:
                found.setdefault(key, None)
            elif key in settle.SUMS:
                found[key] = (found.get(key) or 0) + value
            else:
                found[key] = max(value, found.get(key) if found.get(key) is not None else value)
    return found
