"""The sessions of the campaign: what each of them does all the time, and what it must show.

A subject is one notebook or one kind of run of one user. It goes from round to round until the
campaign ends; what it shows is compared, line by line, with what it shows when nobody disturbs it.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from singularity_proxy.errors import SingularityError

from .tab import Closed, KernelReplaced
from .world import PATIENCE_S, Json, World

ENDED = ("completed", "failed", "cancelled")

NOTEBOOK_VERBS = frozenset(
    {
        *("park", "suspend", "migrate.node", "migrate.device", "checkpoint", "restore", "fork"),
        *("preempt", "keep", "tier", "visit", "close"),
    }
)
RUN_VERBS = frozenset(
    {
        *("park", "suspend", "migrate.node", "migrate.device", "checkpoint", "preempt"),
        *("keep", "tier", "reopen"),
    }
)
JOINED_VERBS = frozenset({"park", "migrate.device", "preempt", "keep", "tier"})


@dataclass(frozen=True)
class Stored:
    """A checkpoint that a verb said is stored. `low`, `high`: what the subject had counted before
    and after it was taken."""

    id: str
    name: str
    low: int
    high: int
    at: float
    sure: bool
    """Whether the counts are of what is in it: its process is, and that had not gone back since it
    was looked at last."""


class Lost(Exception):
    """The subject's session is gone; the message says what shows it."""


class Undone(SingularityError):
    """A cell will have no answer: somebody asked for a checkpoint from before it."""


class Subject(abc.ABC):
    """One user's notebook or run."""

    kind: ClassVar[str]
    verbs: ClassVar[frozenset[str]]

    def __init__(self, world: World, user: str, number: int) -> None:
        self.world, self.user, self.number = world, user, number
        self.session = ""
        """Its session in the ledger; "": it has none now."""
        self.doc: Json = {}
        """The session as the watch saw it last."""
        self.seen_at = 0.0
        """When that was."""
        self.counted = 0
        """How far it is in its round: steps, rows, visits. Goes back with the session."""
        self.stored: dict[str, Stored] = {}
        """Checkpoints by id that are stored, of the present session."""
        self.incarnation = 1
        self.rounds = 0
        self.progress_at = 0.0
        """When it last showed something new."""
        self.verb = ""
        """The verb that is under way."""
        self.locked = asyncio.Lock()
        """Held by whoever exchanges the session for a new one, and by verbs meanwhile."""
        self.reopening = False
        """Its end is about to be taken back."""
        self.kept_back = ""
        """Why it does not go on at the moment: somebody suspended or preempted it."""
        self.history: list[str] = []
        """Sessions that it had before."""
        self.asked_back_at = -1.0
        """When it was last asked to go back to a checkpoint."""
        self._stopped_at: float | None = None
        """When the platform was stopped last: runs end with it."""
        self._killed_at: float | None = None
        """When the processes of its session were killed last."""
        self._powerless: list[tuple[float, bool]] = []
        """(when its node lost power, whether a checkpoint of its process was stored)."""

    @property
    def name(self) -> str:
        return f"{self.user}/{self.kind}"

    def __str__(self) -> str:
        return f"{self.name} ({self.session or 'no session'})"

    # -- life -------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Go from round to round until the campaign ends."""
        while not self.world.ending.is_set():
            try:
                await self.round()
                self.rounds += 1
            except Closed:
                continue
            except Undone as error:
                self.world.timeline.add("told", f"{self.name}: {error.message}")
            except (KernelReplaced, Lost) as error:
                await self.judge_loss(str(error))
            except (SingularityError, OSError, TimeoutError) as error:
                said = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
                if not self.world.ending.is_set():
                    self.world.timeline.violate("stuck", self.name, said)
                    await self.drop()

    @abc.abstractmethod
    async def round(self) -> None:
        """One round from its beginning, or from where it is, to its end. Raises KernelReplaced or
        Lost when its session is gone."""

    @abc.abstractmethod
    async def drop(self) -> None:
        """Give up the session and begin with a new one in the next round."""

    @abc.abstractmethod
    async def settle(self) -> None:
        """The faults are over: bring the session back, look at everything once more, end it."""

    async def check_stored(self) -> int:
        """Go back to each checkpoint with a name that was called stored, and look at what is there;
        how many that were. Those of runs are restored whenever a run goes on."""
        return 0

    async def visit(self) -> str:
        """Ask the session something that only its own memory can answer; what was wrong, or ""."""
        return ""

    # -- what is known ----------------------------------------------------------------------------

    def advance(self, counted: int) -> None:
        """It has shown something new."""
        self.counted = counted
        self.progress_at = self.world.timeline.now

    def see(self, doc: Json) -> None:
        """The watch has seen the session's document."""
        self.doc, self.seen_at = doc, self.world.timeline.now

    def note_power_loss(self, node: str) -> None:
        """Its node loses power now."""
        if self.doc.get("node") == node and self.doc.get("process_state") not in (
            "suspended",
            "queued",
        ):
            checkpoint = self.doc.get("last_checkpoint") or {}
            whole = checkpoint.get("level") == "process" or self.retries
            self._powerless.append((self.world.timeline.now, bool(whole)))

    def note_kill(self) -> None:
        """All of its processes are killed now."""
        self._killed_at = self.world.timeline.now

    @contextlib.contextmanager
    def asking_back(self) -> Iterator[None]:
        """Within, it is asked to go back to a checkpoint: cells from after that are undone."""
        self.asked_back_at = self.world.timeline.now
        try:
            yield
        finally:
            self.asked_back_at = self.world.timeline.now

    def note_restart(self) -> None:
        """The whole platform stops now, as by Ctrl-C."""
        self._stopped_at = self.world.timeline.now

    ends_with_platform: ClassVar[bool] = False
    """A stop of the platform ends it, as the documentation says."""

    retries: ClassVar[bool] = False
    """Begins again by itself when it is lost."""

    def excuse(self) -> str:
        """Why the session may be gone: it was killed itself, its node lost power and nothing of it
        was stored, or it ends with the platform; "" if not."""
        now = self.world.timeline.now
        if any(now - at < 300 and not whole for at, whole in self._powerless):
            return "its node lost power before anything of it was stored"
        if self._killed_at is not None and now - self._killed_at < 300:
            return "its own processes were killed"
        stopped = self._stopped_at
        if self.ends_with_platform and stopped is not None and now - stopped < 300:
            return "the platform was stopped, and runs end with it"
        return ""

    async def judge_loss(self, what: str) -> None:
        """Its session is gone: told and excused, or a violation. Begins anew in any case."""
        found = await self.world.session(self.session) if self.session else {}
        state, reason = found.get("process_state"), found.get("reason")
        text = f"{what}; session {self.session} is {state}: {reason}"
        if why := self.excuse():
            self.world.timeline.add("told", f"{self.name}: lost, {why} ({text})")
            self.world.timeline.count("told losses")
            if state not in ENDED or not reason:
                self.world.timeline.violate("told", self.name, f"it is lost and not told: {text}")
        else:
            self.world.timeline.violate("lost", self.name, text)
        await self.drop()

    async def end_session(self, session: str) -> None:
        """End a session and note it in `history`, however long the service is away."""
        service = self.world.service(timeout=30.0)
        with contextlib.suppress(SingularityError):
            await self.world.persist(
                lambda: service.end_session(session, grace_s=0.0), what=f"end of {self.name}"
            )
        self.history.append(session)

    def forget_session(self) -> None:
        """The next round has another session. Who ended the one before notes it in `history`."""
        self.session, self.doc, self.counted, self.incarnation = "", {}, 0, 1
        self.stored.clear()
        self._powerless.clear()
        self._killed_at = None
        self.kept_back = ""

    async def has_gone_back(self) -> bool:
        """Whether the session went to a checkpoint since its count was looked at last."""
        found = await self.world.session(self.session)
        return int(found.get("incarnation", 1)) > self.incarnation

    async def check_went_back(self, was: int, now: int, what: str, of: Lines | None = None) -> None:
        """Its count, or that of one of its cells, was `was` and is `now`, which only a checkpoint
        that the session went to explains. Several cells go back at once."""
        found = await self.world.session(self.session)
        counter, incarnation = of or self, found.get("incarnation", 1)
        if incarnation <= counter.incarnation:
            self.world.timeline.violate("once", self.name, f"{what} {now} came again after {was}")
            return
        counter.incarnation = incarnation
        self.incarnation = max(self.incarnation, incarnation)
        self.world.timeline.add("told", f"{self.name}: a checkpoint took {what} {was} to {now}")

    async def stored_now(self, checkpoint: Json | None, low: int) -> None:
        """A verb said that this checkpoint is stored; the count was `low` before."""
        if checkpoint:
            found = Stored(
                checkpoint["id"],
                checkpoint["name"] or "",
                low,
                self.counted,
                self.world.timeline.now,
                checkpoint["level"] == "process" and checkpoint["incarnation"] <= self.incarnation,
            )
            self.stored[found.id] = found

    async def reach(self, state: str) -> bool:
        """Wait until its process is in this state, for as long as patience allows."""
        began = self.world.calm_s
        while (await self.world.session(self.session)).get("process_state") != state:
            if self.world.calm_s - began > PATIENCE_S:
                return False
            await asyncio.sleep(0.5)
        return True

    async def bring_back(self) -> Json:
        """Resume it if it is in the store or has no devices by somebody's wish; its document then.
        Raises Unavailable when it does not come back."""
        service = self.world.service(timeout=90.0)

        async def resume() -> Json:
            return await service.resume(self.session)

        found = await self.world.session(self.session)
        state = found.get("process_state", "failed")
        if state in ("suspended", "suspending") or (state not in ENDED and found["held_back"]):
            found = await self.world.persist(resume, 4 * PATIENCE_S, f"resume of {self}")
        return found


class Lines:
    """Compares printed lines with those of an undisturbed run, as they come.

    `gaps`: lines may be missing after a connection broke (what was on its way through a server that
    was killed); they may never come twice or out of order."""

    def __init__(self, subject: Subject, expected: dict[int, list[str]], gaps: bool) -> None:
        self.subject, self.expected, self.gaps = subject, expected, gaps
        self.last: dict[int, int] = dict.fromkeys(expected, -1)
        self.missing = 0
        self.incarnation = subject.incarnation
        """Of the session when these lines began, or went back last."""
        self._rest = ""
        self._tasks: set[asyncio.Task[Any]] = set()

    def take(self, text: str, allowed_gap: bool) -> None:
        """More text was printed."""
        from .programs import lines

        whole, newline, rest = (self._rest + text).rpartition("\n")
        self._rest = rest
        for rank, step, loss in lines(whole + newline):
            self._take(rank, step, loss, allowed_gap)

    def _take(self, rank: int, step: int, loss: str, allowed_gap: bool) -> None:
        subject, timeline = self.subject, self.subject.world.timeline
        expected, last = self.expected.get(rank), self.last.get(rank, -1)
        if expected is None or step >= len(expected):
            timeline.violate("lines", subject.name, f"step {step} of rank {rank} does not exist")
            return
        if loss != expected[step]:
            text = f"step {step} of rank {rank} is {loss} instead of {expected[step]}"
            timeline.violate("bitwise", subject.name, f"{text} (round {subject.rounds})")
        if step > last + 1:
            self.missing += step - last - 1
            if not (self.gaps and allowed_gap):
                text = f"after step {last} came step {step} (rank {rank})"
                timeline.violate("lines", subject.name, f"{text}, round {subject.rounds}")
            else:
                timeline.count("lines lost on their way")
        elif step <= last:
            check = asyncio.ensure_future(subject.check_went_back(last, step, "step", self))
            self._tasks.add(check)
            check.add_done_callback(self._tasks.discard)
        self.last[rank] = step
        subject.advance(step + 1)
