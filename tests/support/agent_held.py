"""One step of the node agent at which a test holds it up (`agent_with_fault.py`)."""

from __future__ import annotations

import contextlib

from support.agent import AgentBox, until


class Held:
    """The agent of `box` will stop at `step`, once, until `release`."""

    def __init__(self, box: AgentBox, step: str) -> None:
        state = box.root / "state"
        self._wanted, self._reached = state / "fault", state / "reached"
        self._step = step
        self._wanted.write_text(step)

    @property
    def reached(self) -> bool:
        """Whether the agent stands there now."""
        return self._reached.exists()

    async def wait(self) -> None:
        """Wait until it does."""
        await until(lambda: self.reached)

    def again(self) -> None:
        """Let it go on, and stop when it comes there once more."""
        self._wanted.write_text(self._step)
        self._reached.unlink()

    def release(self) -> None:
        """Let it go on, or not stop there at all."""
        for path in (self._wanted, self._reached):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
