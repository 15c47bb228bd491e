"""`jupyter singularity suspend`: put a whole session into the store and free its node."""

from __future__ import annotations

from .verbs import WHICH, VerbApp


class SuspendApp(VerbApp):
    name = "jupyter-singularity-suspend"
    description = f"""Put a session with its processes into the store and free its node. The
    service says when it cannot do that; `park` and `preempt` free the devices. {WHICH}"""
    examples = """
        jupyter singularity suspend 3f9c
    """


main = SuspendApp.launch
