"""The node agent, killed by itself at a step that a test names: `<state folder>/fault` holds the
name, and is removed at the step, so that the next agent gets by."""

import functools
import os
import signal
import sys
from pathlib import Path

from singularity_scheduler.agent import app
from singularity_scheduler.agent.node import Node

[STATE] = [word.partition("=")[2] for word in sys.argv if word.startswith("--NodeAgent.state_dir=")]
FAULT = Path(STATE) / "fault"


def step(name: str) -> None:
    try:
        if FAULT.read_text() != name:
            return
    except FileNotFoundError:
        return
    FAULT.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


app.Node = functools.partial(Node, on_step=step)  # type: ignore[misc, assignment]
app.main()
