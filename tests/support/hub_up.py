"""`jupyter singularity up` as a process, and its platform as one that is driven from here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

from singularity_spawner.platform import Platform
from singularity_spawner.platform.processes import arguments, end_run, of_run
from singularity_spawner.platform.settings import Settings, StateFolder


class Up:
    """One `up` process and what it printed."""

    def __init__(self, process):
        self.process = process
        self.lines = []

    async def until(self, text):
        """Read until a line contains `text`; raises AssertionError when the output ends before."""
        async with asyncio.timeout(100):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line)
                if text in line:
                    return line
        raise AssertionError("".join(self.lines) + (await self.process.stderr.read()).decode())

    async def end(self, signum=None, seconds=60):
        """Send `signum` and wait; (exit code, rest of standard output, standard error)."""
        if signum is not None:
            self.process.send_signal(signum)
        async with asyncio.timeout(seconds):
            out, err = await self.process.communicate()
        return self.process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def up(folder, *options, prefix=sys.prefix, **variables):
    """`up` of the environment at `prefix`, with `variables` beside this process's own. What it has
    started goes on after it where a test wants that, and not after a test that fails."""
    process = await asyncio.create_subprocess_exec(
        str(Path(prefix) / "bin/jupyter-singularity"),
        "up",
        "--state",
        str(folder),
        *options,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Up(process)
    except BaseException:
        await _kill(process)
        await end_all(folder)
        raise
    finally:
        await _kill(process)


async def _kill(process):
    if process.returncode is None:
        process.kill()
        await process.communicate()


async def end_all(folder):
    """End what the last platform in `folder` has left, if there was one, and remove what it had in
    memory."""
    if (settings := settings_of(folder)) is not None:
        await end_run(settings.instance, 1.0)
        for path in settings.memory:
            shutil.rmtree(path, ignore_errors=True)  # most have removed theirs


def settings_of(folder):
    return Settings.load(StateFolder(folder))


def platform_of(folder):
    """What drives the platform that an `up` runs in this folder."""
    platform = Platform(folder)
    platform._settings = settings_of(folder)
    return platform


PARTS = {
    "hub": b"singularity_spawner.platform.hub",
    "proxy": b"--error-target",
    "service": b"singularity_scheduler.service",
    "agent": b"singularity_scheduler.agent",
}
"""Parts of a platform, and an argument by which their processes are known."""


def pid_of(settings, part):
    """The process of one of `PARTS`, None while there is none."""
    run = of_run(settings.instance)
    found = {p.pid: p for p in run if PARTS[part] in arguments(p.pid)}
    return next((pid for pid, p in found.items() if p.parent not in found), None)


async def kill(settings, *parts, signum=signal.SIGKILL):
    """Signal parts at once, and wait until each has another process."""
    before = {part: pid_of(settings, part) for part in parts}
    for pid in before.values():
        os.kill(pid, signum)
    async with asyncio.timeout(60):
        while any(pid_of(settings, part) in (None, pid) for part, pid in before.items()):
            await asyncio.sleep(0.02)
