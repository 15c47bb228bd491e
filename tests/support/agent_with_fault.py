"""The node agent, held up at a step that a test names: `<state folder>/fault` holds the name, and
is called `reached` from the moment at which the agent is there until the test removes it. What
happens to whom meanwhile is the test's business."""

import functools
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from singularity_scheduler.agent import app
from singularity_scheduler.agent.devices import proxies
from singularity_scheduler.agent.node import Node
from support.agent_refusing import Refusing

[STATE] = [word.partition("=")[2] for word in sys.argv if word.startswith("--NodeAgent.state_dir=")]
FAULT, REACHED = Path(STATE) / "fault", Path(STATE) / "reached"
LIMIT_S = 30.0


def step(name: str) -> None:
    try:
        if FAULT.read_text() != name:
            return
        os.rename(FAULT, REACHED)
    except FileNotFoundError:  # nothing is wanted, or another thread was here before
        return
    deadline = time.monotonic() + LIMIT_S
    while REACHED.exists() and time.monotonic() < deadline:
        time.sleep(0.002)


make_starter = proxies.make_starter
proxies.make_starter = lambda folder: Refusing(make_starter(folder))
app.Node = functools.partial(Node, on_step=step)  # type: ignore[misc, assignment]
app.main()
