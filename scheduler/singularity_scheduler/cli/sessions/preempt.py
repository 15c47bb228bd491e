"""`jupyter singularity preempt`: take a session's devices and hold it back until it is resumed."""

from __future__ import annotations

from .verbs import WHICH, VerbApp


class PreemptApp(VerbApp):
    name = "jupyter-singularity-preempt"
    description = f"""Take a session's devices and hold it back: nothing is lost, running code
    waits, a queued run does not start, until `resume` or `migrate`. {WHICH}"""
    examples = """
        jupyter singularity preempt 3f9c
        jupyter singularity resume 3f9c
    """


main = PreemptApp.launch
