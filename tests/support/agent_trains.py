"""A session that trains (`agent_training.py`) under an `AgentBox`, and the same without a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import re
import subprocess
import sys
from typing import Any

from singularity_proxy.errors import SingularityError
from support.agent import SUPPORT, AgentBox

TRAINING = str(SUPPORT / "agent_training.py")
ENDED = "trained"
"""What a training that has come to its end is called."""
STEPS = 24
LONGEST = 120
"""Steps of the runs that last longest."""


def losses(text: str) -> dict[int, str]:
    """What a log of the training says, by step."""
    return {int(n): x for n, x in re.findall(r"^step (\d+) (\S+)$", text, re.MULTILINE)}


def native_losses(steps: int = STEPS) -> dict[int, str]:
    """The losses of an undisturbed run of `steps` steps on the CPU, by step. A run of `LONGEST` is
    made once in a process: a shorter one is its beginning."""
    longest = _run_natively(max(steps, LONGEST))
    return {step: loss for step, loss in longest.items() if step < steps}


@functools.cache
def _run_natively(steps: int) -> dict[int, str]:
    argv = [sys.executable, TRAINING, "cpu", str(steps)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        try:
            said = "".join(itertools.takewhile(lambda line: line != "done\n", run.stdout))
        finally:
            run.kill()
    found = losses(said)
    assert len(found) == steps, said
    return found


async def start_training(
    box: AgentBox, *stops: int, pause_s: float = 0.0, steps: int = STEPS
) -> str:
    """Start a session that trains for `steps` steps and waits before each of the steps `stops`;
    between steps it pauses for `pause_s`, until `hurry`."""
    (box.work / "hurry").unlink(missing_ok=True)
    for step in stops:
        (box.work / f"stop-{step}").touch()
    argv = [sys.executable, TRAINING, "cuda", str(steps), str(box.work), str(pause_s)]
    session = await box.start(argv)
    await box.event("device.need", session)
    return session


async def reach(box: AgentBox, session: str, step: int) -> None:
    """Wait until it waits before `step`."""
    await box.logged(session, f"waiting {step}\n")


def go(box: AgentBox, step: int) -> None:
    """Let it go on with `step`."""
    (box.work / f"go-{step}").touch()


def hurry(box: AgentBox) -> None:
    """Let the sessions of `box` train without pauses: what they had to be in time for is over."""
    (box.work / "hurry").touch()


async def logged(client: Any, session: str, text: str) -> str:
    """The session's log, once `text` is in it."""
    said = ""
    for _ in range(2400):
        with contextlib.suppress(SingularityError):  # on its way, it has no log
            said = "".join([text async for text in client.logs(session)])
            if text in said:
                return said
        await asyncio.sleep(0.05)
    raise AssertionError(f"{said}\n{await client.get_session(session)}")
