"""What the tour's acts share: the table of steps and checks, and the look at sessions."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from singularity_proxy.errors import SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient

from singularity_spawner.platform.notebook import Cell, Notebook

from .notebooks import SETUP, steps_of

SECONDS = 120.0
"""Longest wait for anything."""

ONE_THREAD = "--LocalFleet.agent_args=--NodeAgent.proxy_threads=1"
"""Of the scheduler service: devices compute with one thread, like the native reference runs."""

ENDED = ("completed", "failed", "cancelled")


@dataclass
class Tour:
    """What happened so far: the rows of the final table and the checks behind the exit code."""

    console: Console
    began: float = field(default_factory=time.monotonic)
    rows: list[tuple[str, float, bool]] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/dim]  {text}")

    async def step(self, what: str, work: Awaitable[Any]) -> Any:
        """Do one step and note how long it took; its failure is a row too, then it is raised."""
        began = time.monotonic()
        try:
            result = await work
        except SingularityError:
            self.rows.append((what, time.monotonic() - began, False))
            raise
        self.rows.append((what, time.monotonic() - began, True))
        return result

    def check(self, what: str, holds: bool) -> None:
        self.rows.append((what, 0.0, holds))
        self.say(f"{'[green]holds[/green]' if holds else '[red]DOES NOT HOLD[/red]'}: {what}")

    @property
    def passed(self) -> bool:
        return bool(self.rows) and all(ok for _, _, ok in self.rows)

    def table(self) -> Table:
        table = Table(title="What happened")
        table.add_column("step or check")
        table.add_column("time", justify="right")
        table.add_column("")
        for what, seconds, ok in self.rows:
            table.add_row(what, f"{seconds:.2f} s" if seconds else "", "ok" if ok else "FAILED")
        return table


async def until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `condition`; raises `Unavailable` naming `what` after `SECONDS`."""
    deadline = time.monotonic() + SECONDS
    while not await condition():
        if time.monotonic() > deadline:
            raise Unavailable(f"{what} did not happen within {SECONDS:g} s")
        await asyncio.sleep(0.05)


class Sessions:
    """Looks at sessions as the administrator does, by the names that the tour gives them."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service
        self._ids: dict[str, str] = {}

    async def remember(self, notebook: Notebook) -> None:
        """The session that appeared with `notebook`'s kernel."""
        known = set(self._ids.values())
        fresh = [s for s in await self._service.sessions() if s["id"] not in known]
        live = [s for s in fresh if s["process_state"] in ("starting", "live")]
        if len(live) != 1:
            raise Unavailable(
                f"{len(live)} sessions appeared for notebook {notebook.name}, not one"
            )
        self._ids[notebook.name] = str(live[0]["id"])

    def name(self, name: str, session: str) -> None:
        """From now on `name` means `session`."""
        self._ids[name] = session

    async def of(self, name: str) -> dict[str, Any]:
        return dict(await self._service.get_session(self._ids[name]))

    async def wait(self, name: str, device_state: str) -> dict[str, Any]:
        async def reached() -> bool:
            found = await self.of(name)
            if found["process_state"] in ENDED:
                raise SingularityError(
                    f"{name} ended before it was '{device_state}': {found['reason']}"
                )
            return bool(found["device_state"] == device_state)

        await until(f"{name} becoming '{device_state}'", reached)
        return await self.of(name)

    async def idles(self, name: str) -> None:
        """Wait until its devices count as idle: some seconds after the last call reached them."""

        async def counted() -> bool:
            return "gives_in_s" in (await self._service.why(self._ids[name]))["facts"]

        await until(f"{name} counting as idle", counted)

    async def end(self, name: str) -> dict[str, Any]:
        """Wait until a run has completed; its session."""

        async def over() -> bool:
            return (await self.of(name))["process_state"] in ENDED

        await until(f"the end of {name}", over)
        found = await self.of(name)
        if found["process_state"] != "completed":
            raise SingularityError(f"{name} {found['state']}: {found['reason']}")
        return found

    async def text(self, name: str) -> str:
        """What a run has printed so far."""
        if (await self.of(name))["process_state"] in ("queued", "starting"):
            return ""
        return "".join([text async for text in self._service.logs(self._ids[name])])

    async def prints(self, name: str, wanted: str) -> None:
        """Wait until a run has printed `wanted`."""
        await self._until_said(name, f"'{wanted}' of {name}", lambda text: wanted in text)

    async def steps(self, name: str) -> int:
        """How many steps a run has done so far."""
        return len(steps_of(await self.text(name)))

    async def trains(self, name: str, steps: int) -> None:
        """Wait until a run has done `steps` steps."""
        await self._until_said(
            name, f"{steps} steps of {name}", lambda text: len(steps_of(text)) >= steps
        )

    async def _until_said(self, name: str, what: str, enough: Callable[[str], bool]) -> None:
        async def there() -> bool:
            found = await self.of(name)
            if found["process_state"] in ENDED and found["process_state"] != "completed":
                raise SingularityError(f"{name} {found['state']}: {found['reason']}")
            return enough(await self.text(name))

        await until(what, there)

    async def preempted_for(self, name: str) -> str:
        """The scheduler's reason of the last time that devices were taken from `name`."""
        taken = [c["reason"] for c in await self.history(name) if c["rule"].startswith("preempt")]
        return str(taken[-1]) if taken else "never preempted"

    async def history(self, name: str) -> list[dict[str, Any]]:
        return list(await self._service.history(self._ids[name]))


async def native_losses(code: str, seed: int, steps: int, folder: Path) -> list[str]:
    """The losses of an uninterrupted run of the same code on the CPU, outside of the platform."""
    script = folder / f"reference-{seed}.py"
    script.write_text(SETUP.format(device="cpu", seed=seed) + code + f"\ntrain({steps})\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        stdout=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise SingularityError(
            f"the native reference run ended with exit code {process.returncode}"
        )
    return steps_of(out.decode())


async def printed(cell: Cell, steps: int) -> None:
    async def there() -> bool:
        if cell.done.is_set() and cell.status != "ok":
            await cell.wait(0)
        return len(steps_of(cell.text)) >= steps

    await until(f"{steps} steps", there)
