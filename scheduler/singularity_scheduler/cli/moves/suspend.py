"""`jupyter singularity suspend`: put a whole session into the store and free its node."""

from __future__ import annotations

from typing import Any, ClassVar

from singularity_scheduler.cli.sessions.verbs import WHICH

from .moving import MovingApp


class SuspendApp(MovingApp):
    name = "jupyter-singularity-suspend"
    synopsis = "SESSION [NAME]"
    most: ClassVar[int | None] = 2
    description = f"""Put a session with its processes, in the middle of whatever it does, into the
    store, and free its node; the checkpoint is called NAME if one is given. `resume`, or the next
    request of its notebook, brings it back, here or on another node, and nothing is lost. A node
    that cannot do that says why; `park` and `preempt` free the devices. {WHICH}"""
    examples = """
        jupyter singularity suspend 3f9c
        jupyter singularity suspend train.ipynb "before the weekend"
    """

    def details(self) -> tuple[Any, ...]:
        return tuple(self.words[1:])

    def reached(self, session: dict[str, Any]) -> bool:
        return str(session.get("process_state")) in ("suspended", "suspending")


main = SuspendApp.launch
