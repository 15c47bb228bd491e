"""`jupyter singularity demo`: the unattended tour, on a platform of its own with two devices.

Two notebooks train, two premium notebooks take their devices away (one notebook is idle, the other
in the middle of a cell), both go on by themselves on the other device, and every loss is bitwise
that of an uninterrupted native run. Exit code 0 only when every check holds.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from singularity_proxy.errors import SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient

from .demo_notebooks import CNN, GPT, SETUP, steps_of
from .notebook import Cell, Notebook
from .platform import Platform
from .ports import free_ports

A_STEPS = 60
"""Steps of notebook A's first cell."""
B_STEPS = 1500
"""Steps of notebook B's one cell: long enough to be caught in its middle."""
PREMIUM_STEPS = 30
"""So many steps a premium notebook does at least."""
UNTIL_FLAG = "import os\nwhile not os.path.exists('{name}.flag'):\n    train(1)\nprint('ended')"
SECONDS = 120.0
"""Longest wait for anything."""


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
    """Looks at sessions as the administrator does, one per notebook."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service
        self._ids: dict[str, str] = {}

    async def remember(self, notebook: Notebook) -> None:
        """The session that appeared with `notebook`'s kernel."""
        known = set(self._ids.values())
        fresh = [s for s in await self._service.list_sessions() if s["id"] not in known]
        live = [s for s in fresh if s["process_state"] in ("starting", "live")]
        if len(live) != 1:
            raise Unavailable(
                f"{len(live)} sessions appeared for notebook {notebook.name}, not one"
            )
        self._ids[notebook.name] = str(live[0]["id"])

    async def of(self, notebook: Notebook) -> dict[str, Any]:
        return dict(await self._service.get_session(self._ids[notebook.name]))

    async def wait(self, notebook: Notebook, device_state: str) -> dict[str, Any]:
        async def reached() -> bool:
            return bool((await self.of(notebook))["device_state"] == device_state)

        await until(f"notebook {notebook.name} becoming '{device_state}'", reached)
        return await self.of(notebook)


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


async def tour(platform: Platform, t: Tour, folder: Path) -> None:
    """The four acts; every claim is a check."""
    sessions = Sessions(platform.service())
    options = {"alice": "standard", "bob": "basic", "carol": "premium"}
    urls, notebooks = {}, {}
    for user, tier in options.items():
        t.say(f"{user} logs in and picks tier {tier}, 1 device")
        urls[user] = await t.step(
            f"{user}'s server starts", platform.start_server(user, {"tier": tier, "devices": 1})
        )
    for name, user in (("A", "alice"), ("B", "bob"), ("P1", "carol"), ("P2", "carol")):
        notebooks[name] = Notebook(urls[user], await platform.user_token(user), name)
        await t.step(f"kernel of notebook {name}", notebooks[name].open())
        await sessions.remember(notebooks[name])
    a, b, p1, p2 = (notebooks[n] for n in ("A", "B", "P1", "P2"))
    try:
        await acts(t, sessions, folder, a, b, p1, p2)
    finally:
        for notebook in notebooks.values():
            await notebook.close()


async def acts(
    t: Tour, sessions: Sessions, folder: Path, a: Notebook, b: Notebook, p1: Notebook, p2: Notebook
) -> None:
    for p in (p1, p2):  # open and imported, but the model is not on a device yet
        await p.run(SETUP.format(device="cuda", seed=13) + "import sklearn.datasets", SECONDS)
    t.say("Act 1: A (standard) trains a small GPT, B (basic) starts a long cell with a CNN")
    answer = await a.run(SETUP.format(device="cuda", seed=11) + "print(torch.cuda.is_available())")
    t.check(
        "torch.cuda.is_available() is True in a kernel without accelerator",
        answer.split() == ["True"],
    )
    t.check("code that has not called a device holds none", (await sessions.of(a))["devices"] == [])
    await a.run(GPT, SECONDS)
    first = await t.step(f"A trains {A_STEPS} steps", a.run(f"train({A_STEPS})", SECONDS))
    a_device = (await sessions.of(a))["devices"]
    await b.run(SETUP.format(device="cuda", seed=12) + CNN, SECONDS)
    long_cell = await b.start(f"train({B_STEPS})")
    await t.step("B is in the middle of its cell", printed(long_cell, 20))
    b_device = (await sessions.of(b))["devices"]
    t.say(f"A is idle and keeps {a_device}, B trains on {b_device}")
    t.check("A and B hold one device each", len({*a_device, *b_device}) == 2)

    t.say("Act 2: two premium notebooks ask for devices and train until they are told to end")
    p1_cell = await t.step("P1 gets a device and trains", training(p1))
    parked = await sessions.of(a)
    t.say(f"A: {parked['state']}: {parked['reason']}")
    t.check("idle A was parked for P1", parked["device_state"] == "parked")
    t.check("B went on meanwhile", (await sessions.of(b))["devices"] == b_device)
    p2_cell = await t.step("P2 gets a device and trains", training(p2))
    waiting = await sessions.wait(b, "waiting")
    t.say(f"B: {waiting['state']}: {waiting['reason']}")
    stopped_at = len(steps_of(long_cell.text))
    t.check(
        f"B was preempted in the middle of its cell (after step {stopped_at} of {B_STEPS})",
        20 <= stopped_at < B_STEPS and not long_cell.done.is_set(),
    )
    next_cell = await a.start(UNTIL_FLAG.format(name=a.name))
    await sessions.wait(a, "waiting")

    t.say(
        "Act 3: the premium notebooks end; A's next cell and B's blocked cell go on by themselves"
    )
    # A (standard) is served before B (basic), so the one on B's old device ends first.
    first_to_end, last_to_end = (p2, p2_cell), (p1, p1_cell)
    if (await sessions.of(p1))["devices"] == b_device:
        first_to_end, last_to_end = last_to_end, first_to_end
    await t.step("the premium notebook on B's old device ends", end(*first_to_end))
    await t.step("A's next cell goes on by itself", printed(next_cell, 1))
    a_now = (await sessions.of(a))["devices"]
    t.check("B still waits: no device is free", not long_cell.done.is_set())
    await t.step("the premium notebook on A's old device ends", end(*last_to_end))
    b_now = (await sessions.wait(b, "held"))["devices"]
    await t.step("B's blocked cell goes on by itself and ends", long_cell.wait(SECONDS))
    await a.put_file(f"{a.name}.flag", "")
    second = (await t.step("A's cell ends", next_cell.wait(SECONDS))).text
    t.say(f"A went from {a_device} to {a_now}, B from {b_device} to {b_now}")
    t.check("A went on on another device than before", bool(a_now) and a_now != a_device)
    t.check("B went on on another device than before", bool(b_now) and b_now != b_device)

    t.say("Act 4: the same code, uninterrupted, natively on the CPU")
    a_losses = steps_of(first + second)
    a_native = await t.step("native run of A", native_losses(GPT, 11, len(a_losses), folder))
    b_native = await t.step("native run of B", native_losses(CNN, 12, B_STEPS, folder))
    t.check(
        f"A's {len(a_native)} losses are bitwise those of the uninterrupted run",
        len(a_losses) > A_STEPS and a_losses == a_native,
    )
    t.check(
        f"B's {len(b_native)} losses are bitwise those of the uninterrupted run",
        len(b_native) == B_STEPS and steps_of(long_cell.text) == b_native,
    )


async def training(notebook: Notebook) -> Cell:
    """Start a cell that trains until a flag file appears; returns when it has done some steps."""
    cell = await notebook.start(CNN + UNTIL_FLAG.format(name=notebook.name))
    await printed(cell, PREMIUM_STEPS)
    return cell


async def end(notebook: Notebook, cell: Cell) -> None:
    """Let a premium notebook finish its training and shut its kernel down."""
    await notebook.put_file(f"{notebook.name}.flag", "")
    await cell.wait(SECONDS)
    await notebook.close()


async def run(folder: Path, console: Console) -> bool:
    t = Tour(console)
    platform = Platform(folder, devices=2, port=free_ports(1)[0])
    try:
        await t.step("the platform starts", platform.start())
        t.say(f"JupyterHub, scheduler and agent run at {platform.url} with 2 devices")
        await tour(platform, t, folder)
    except SingularityError as error:
        t.check(error.message, False)
    finally:
        await t.step("the platform stops", platform.stop())
    console.print(t.table())
    return t.passed


def main(argv: list[str] | None = None) -> int:
    """Sub-command of `jupyter singularity`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="jupyter singularity demo", description=__doc__)
    parser.parse_args(argv)
    # Not below a private folder: servers run under uids of their own when this is root.
    folder = Path(tempfile.mkdtemp(prefix="singularity-demo-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        passed = asyncio.run(run(folder, Console(width=110)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("Every check holds." if passed else "A check does not hold; see the table.")
    return 0 if passed else 1
