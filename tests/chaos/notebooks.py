"""The notebooks of the campaign: a training, a CSV writer, idle variables, small cells."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from functools import cached_property
from typing import ClassVar

from singularity_proxy.errors import Conflict, SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient

from . import programs
from .subjects import ENDED, NOTEBOOK_VERBS, Lines, Lost, Stored, Subject, Undone
from .tab import Cell, KernelReplaced, Tab
from .world import PATIENCE_S, World

CELL_S = 1500.0
"""Longest time for one cell: the campaign's longest round with everything in its way."""

QUIET_S = 30.0
"""A kernel that says for so long that it is idle, while a cell of ours has no reply, has lost
it."""

SENT_AGAIN = 2
"""How often a request may be lost on its way, one after another."""

ON_ITS_WAY_S = 25.0
"""What a tab sent or was sent so long before or after a fault of what is in between may be lost."""


class Notebook(Subject):
    """A notebook in a tab that stays open."""

    verbs: ClassVar[frozenset[str]] = NOTEBOOK_VERBS
    setup: ClassVar[str] = ""

    def __init__(self, world: World, user: str, number: int) -> None:
        super().__init__(world, user, number)
        self.tab: Tab | None = None
        self._cells = asyncio.Lock()
        self._visits = asyncio.Lock()
        self.begun = False
        """What is run once in a new kernel was run: there is something to look at."""

    @property
    def path(self) -> str:
        return f"{self.kind}.ipynb"

    async def opened(self) -> Tab:
        """The tab, with the notebook's kernel and its session known."""
        if self.tab is None:
            async with self.locked:
                self.begun = False
                self.tab = Tab(self.world, self.user, self.path)
                await self.tab.open()
                self.session = await self._find_session(self.tab.kernel)
            self.world.timeline.add("session", f"{self.name} is session {self.session}")
            await self.begin()
            self.begun = True
        return self.tab

    async def begin(self) -> None:
        """What is run once in a new kernel."""
        if self.setup:
            await self.run(self.setup)

    async def _find_session(self, kernel: str) -> str:
        async def look() -> str:
            service = self.world.service(await self.world.token(self.user), timeout=10.0)
            for found in await service.suspended(self.user, live=True):
                if found["kernel_id"] == kernel:
                    return str(found["session"]["id"])
            raise Unavailable(f"no session has kernel {kernel}")

        return await self.world.persist(look, what=f"the session of {self.name}")

    async def run(self, code: str, lines: Lines | None = None) -> Cell:
        """Run a cell to its end. Raises KernelReplaced, or SingularityError with the cell's
        error."""
        async with self._cells:
            tab = self.tab
            assert tab is not None

            def on_text(text: str) -> None:
                self.progress_at = self.world.timeline.now
                if lines is not None:
                    lines.take(text, self._may_have_lost(tab))

            cell_sent = self.world.timeline.now
            cell = await tab.execute(code, on_text)
            await self._finish(tab, cell)
        if cell.error.startswith("Undone: "):
            if self.asked_back_at + PATIENCE_S < cell_sent:  # a refusal may yet be carried out
                self.world.timeline.violate("told", self.name, "a cell was undone by nobody's wish")
            raise Undone("its cell was undone: the session went back to before it")
        if cell.status not in ("ok", ""):
            raise SingularityError(f"a cell failed: {cell.error}: {cell.text[-200:]}")
        return cell

    def _may_have_lost(self, tab: Tab) -> bool:
        """Whether messages may be missing, as something between kernel and tab was hit lately."""
        now = self.world.timeline.now
        hit = self.world.hit_since(now - ON_ITS_WAY_S - 30.0, self.user, self.session)
        return hit or (tab.connections > 1 and now - tab.reconnected_at < ON_ITS_WAY_S)

    async def _finish(self, tab: Tab, cell: Cell) -> None:
        """Wait for a cell's reply; what was lost on its way is sent again, if it may be lost."""
        quiet_since, forgotten = None, self.world.calm_s
        deadline = self.world.timeline.now + CELL_S
        while not cell.done:
            with contextlib.suppress(Unavailable):
                await tab.until(lambda: cell.done, 2.0, "")
            now = self.world.timeline.now
            if now > deadline:
                raise Unavailable(f"a cell of {self.name} did not end in {CELL_S:g} s")
            if self.doc.get("process_state") in ENDED:
                raise Lost("its session has ended")
            if not self._is_forgotten():
                forgotten = self.world.calm_s
            excused = self.world.hit_since(cell.sent_at - ON_ITS_WAY_S, self.user, self.session)
            if self.world.calm_s - forgotten > PATIENCE_S and not cell.done:
                # Of a cell that is over and whose reply was lost nothing is left to call it back:
                # its page asks again, and that must.
                if self.doc["busy"] or not excused or cell.sent > SENT_AGAIN:
                    text = f"{self.session} stays in the store, and its open page waits for a reply"
                    self.world.timeline.violate("stuck", self.name, f"{text}: {self.doc['reason']}")
                    await self.bring_back()
                    continue
            else:
                # Its relay may be on a node without power: what is sent waits until that is back.
                idle = self.is_idle() and not self.world.off
                if not idle or cell.done or now - max(cell.sent_at, self.progress_at) < QUIET_S:
                    quiet_since = None
                    continue
                quiet_since = quiet_since or now
                if now - quiet_since < QUIET_S:
                    continue
            if not await self._send_again(tab, cell, excused):
                return
            quiet_since, forgotten = None, self.world.calm_s

    async def _send_again(self, tab: Tab, cell: Cell, excused: bool) -> bool:
        """Note that a cell's request or reply was lost; send it again if nothing came of it, else
        return False. `excused`: something was hit that may have had it."""
        what = "a request" if not (cell.text or cell.status or cell.idle) else "a reply"
        if not excused:
            text = f"{what} was lost: the kernel is idle and its cell has no reply"
            self.world.timeline.violate("messages", self.name, text)
        self.world.timeline.add("tab", f"{self.name}: {what} was lost on its way")
        self.world.timeline.count(f"{what} lost on its way")
        if what == "a reply":
            return False
        if cell.sent > SENT_AGAIN:
            text = f"a cell was sent {cell.sent} times, and nothing of it ever came back"
            self.world.timeline.violate("messages", self.name, f"{text}: {self.session}")
            raise Lost(text)
        cell.sent_at = self.world.timeline.now
        await tab.send(cell)
        return True

    def _is_forgotten(self) -> bool:
        """Whether it is in the store by nobody's wish, and nobody has called it back."""
        fresh = self.world.timeline.now - self.seen_at < 3.0
        stored = self.doc.get("process_state") == "suspended" and not self.doc["called_back"]
        return fresh and stored and not self.verb and not self.world.draining

    async def visit(self) -> str:
        async with self._visits:
            return await self.look() if self.begun else ""

    async def look(self) -> str:
        """Ask the notebook for what only its memory has; what was wrong, or ""."""
        return ""

    def is_idle(self) -> bool:
        """Whether the service says, now, that it lives and runs no cell."""
        fresh = self.world.timeline.now - self.seen_at < 3.0
        return fresh and self.doc.get("process_state") == "live" and not self.doc.get("busy")

    async def drop(self) -> None:
        async with self.locked:
            tab, self.tab = self.tab, None
            old = self.session
            self.forget_session()
            if tab is not None:
                await tab.close(end=True)
            if old:
                await self.end_session(old)

    async def settle(self) -> None:
        if self.tab is None or not self.session:
            return
        try:
            await self.bring_back()
            if wrong := await self.visit():
                self.world.timeline.violate("variables", self.name, wrong)
        except (KernelReplaced, Lost) as error:
            await self.judge_loss(str(error))
        except (SingularityError, TimeoutError) as error:
            said = getattr(error, "message", str(error))
            self.world.timeline.violate("comes back", self.name, f"{self.session}: {said}")

    async def check_stored(self) -> int:
        """Each one is a process image, or device state where it says so; both have the values that
        the session had then."""
        if self.tab is None or not self.session:
            return 0
        named = [c for c in self.stored.values() if c.name]
        service = self.world.service(await self.world.token(self.user), timeout=90.0)
        for stored in sorted(named, key=lambda c: c.at, reverse=True):
            name = f"checkpoint {stored.id} ('{stored.name}')"
            try:
                await self._go_back(service, stored)
                wrong = await self.visit() or self.compare(stored)
            except (KernelReplaced, Lost) as error:
                wrong = str(error)
            except (SingularityError, OSError, TimeoutError) as error:
                wrong = getattr(error, "message", str(error))
            if wrong:
                self.world.timeline.violate("stored", self.name, f"{self.session}, {name}: {wrong}")
            else:
                self.world.timeline.add("stored", f"{self}: {name} came back as it was")
        return len(named)

    async def _go_back(self, service: ServiceClient, stored: Stored) -> None:
        """Restore it from this checkpoint; again while it is refused for something that passes."""
        began = self.world.calm_s
        while True:
            try:
                with self.asking_back():
                    await service.restore(self.session, stored.id, discard=True)
                break
            except (Conflict, Unavailable):
                if self.world.calm_s - began > PATIENCE_S:
                    raise
                await asyncio.sleep(1.0)
        if not await self.reach("live"):
            raise Unavailable("it is not back within a minute")

    async def judge_count(self, was: int, now: int, what: str, cell: Cell) -> str:
        """Say what is wrong with a count that was `was` and is `now`, after `cell`; "": nothing.
        One that was sent again may have been run each time. A session that went to a checkpoint
        may be ahead of where it was, when it had gone back to an older one since that was
        stored."""
        assert self.tab is not None
        if now <= was or (now > was + cell.sent and await self.has_gone_back()):
            await self.check_went_back(was, now, what)
        elif now > was + cell.sent and not self._may_have_lost(self.tab):
            return f"{what} {now} instead of {was + 1}"
        self.advance(now)
        return ""

    def compare(self, stored: Stored) -> str:
        """What is wrong with the count of a session that was visited after it went back; a visit
        may have been under way when it was stored."""
        then = self.counted - 1
        if not stored.sure or stored.low <= then <= stored.high + 1:
            return ""
        return f"it counts {then}, and counted {stored.low} to {stored.high} then"


class Training(Notebook):
    """A GPT with dropout on "cuda"."""

    kind = "gpt"
    steps: ClassVar[int] = 150
    pause_s: ClassVar[float] = 0.25

    @cached_property
    def expected(self) -> list[str]:
        return programs.undisturbed_gpt(self.steps)

    async def round(self) -> None:
        if "expected" not in self.__dict__:
            self.__dict__["expected"] = await asyncio.to_thread(
                programs.undisturbed_gpt, self.steps
            )
        await self.opened()
        self.counted = 0
        lines = Lines(self, {0: self.expected}, gaps=True)
        folder = str(programs.BENCHMARKS)
        code = programs.GPT.format(
            folder=folder, device="cuda", steps=self.steps, pause=self.pause_s
        )
        await self.run(code, lines)
        if wrong := await self.visit():
            self.world.timeline.violate("bitwise", self.name, wrong)

    def compare(self, stored: Stored) -> str:
        return ""  # its losses were compared up to the end of its cell

    async def look(self) -> str:
        if self.tab is None:
            return ""
        cell = await self.run(programs.DIGEST)
        words = cell.text.split()
        if len(words) != 2:
            return "" if self._may_have_lost(self.tab) else f"it said {cell.text!r}"
        count, digest = int(words[0]), words[1]
        expected = hashlib.sha256(" ".join(self.expected[:count]).encode()).hexdigest()
        return "" if digest == expected else f"its {count} losses are not those of a calm run"


class CsvWriter(Notebook):
    """A loop that appends rows to a file in home."""

    kind = "csv"
    rows: ClassVar[int] = 250
    pause_s: ClassVar[float] = 0.2
    void = False
    """Its file was exchanged in this round, so that it says nothing."""
    rows_file = ""
    """The file of this round, in home. No round before had it: the rows of one that was closed
    would count as rows of this one, whose cell may not have begun."""
    begun = 0
    """Rounds that were begun."""

    async def round(self) -> None:
        await self.opened()
        self.begun += 1
        self.counted, self.void = 0, False
        self.rows_file = path = f"rows-{self.begun}.csv"
        code = programs.CSV.format(path=path, rows=self.rows, pause=self.pause_s)
        try:
            cell = await self.run(code)
        except SingularityError as error:
            if self.void and "Bad file descriptor" in error.message:
                return  # as it was told: its file was not its own any more
            raise
        found = self.file(path)
        expected = programs.csv_rows(self.rows)
        if found != expected and not self.void:
            where = programs.first_difference(found, expected)
            text = f"{path} has {len(found)} rows instead of {self.rows}, wrong from row {where} on"
            self.world.timeline.violate("rows", self.name, f"{text}: {found[where : where + 3]}")
        if cell.text and cell.text.split() != ["total", expected[-1].split(",")[1]]:
            self.world.timeline.violate("rows", self.name, f"its cell printed {cell.text!r}")

    def compare(self, stored: Stored) -> str:
        return ""

    async def look(self) -> str:
        """Its sum is that of all rows, wherever in them it was."""
        if self.tab is None or not self.rounds or self.void:
            return ""
        cell = await self.run("print('total', total)")
        expected = f"total {programs.csv_rows(self.rows)[-1].split(',')[1]}"
        if cell.text.strip() == expected or (not cell.text and self._may_have_lost(self.tab)):
            return ""
        return f"it said {cell.text!r} instead of {expected!r}"

    def file(self, path: str) -> list[str]:
        try:
            return (self.world.home(self.user) / path).read_text(errors="replace").splitlines()
        except OSError:
            return []

    def look_at_file(self) -> None:
        """Called by the watch: the rows so far are there once and in order."""
        found = self.file(self.rows_file) if self.rows_file else []
        if len(found) > self.counted:
            self.advance(len(found))
        whole = found[:-1]
        if self.void:
            return
        if whole != programs.csv_rows(self.rows)[: len(whole)]:
            text = f"{self.rows_file} is wrong before row {len(whole)}"
            self.world.timeline.violate("rows", self.name, text)


class Idle(Notebook):
    """Variables that must be there, also on the device, whenever somebody looks."""

    kind = "idle"
    setup = programs.IDLE

    def __init__(self, world: World, user: str, number: int) -> None:
        super().__init__(world, user, number)
        self.digest = ""

    async def begin(self) -> None:
        cell = await self.run(self.setup)
        words = cell.text.split()
        self.counted = 1
        if len(words) == 2 and self.digest in ("", words[1]):
            self.digest = words[1]
        elif not self._may_have_lost(self.tab):  # type: ignore[arg-type]
            text = f"fingerprint {words} instead of {self.digest}"
            self.world.timeline.violate("bitwise", self.name, text)

    async def round(self) -> None:
        await self.opened()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self.world.ending.wait(), random.Random(self.counted).uniform(8, 40)
            )
        if self.tab is not None and (wrong := await self.visit()):
            self.world.timeline.violate("variables", self.name, wrong)

    async def look(self) -> str:
        if self.tab is None:
            return ""
        was = self.counted
        cell = await self.run("print(*fingerprint())")
        words = cell.text.split()
        if len(words) != 2:
            self.counted = was + 1  # it was run, and what it printed was lost on its way
            return "" if self._may_have_lost(self.tab) else f"it said {cell.text!r}"
        visits, digest = int(words[0]), words[1]
        if self.digest and digest != self.digest:
            return f"fingerprint {digest} instead of {self.digest}"
        return await self.judge_count(was, visits, "visit", cell)


class Notes(Notebook):
    """A second notebook in a home where another one works: small cells, one after another, which
    all go into the user's IPython history."""

    kind = "notes"
    setup = programs.NOTES

    async def round(self) -> None:
        await self.opened()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.world.ending.wait(), 2.0)
        if self.tab is not None and (wrong := await self.visit()):
            self.world.timeline.violate("variables", self.name, wrong)

    async def look(self) -> str:
        if self.tab is None:
            return ""
        was = self.counted
        cell = await self.run(programs.NOTE.format(n=1))
        words = cell.text.split()
        if "history" in cell.text:
            return f"IPython says: {cell.text.strip()[:300]}"
        if len(words) != 2:
            self.counted = was + 1
            return "" if self._may_have_lost(self.tab) else f"it said {cell.text!r}"
        count = int(words[0])
        if int(words[1]) != count:
            return f"{count} notes with the sum {words[1]}"
        return await self.judge_count(was, count, "note", cell)
