"""`jupyter singularity resume`: let a session take devices now."""

from __future__ import annotations

from .verbs import WHICH, VerbApp


class ResumeApp(VerbApp):
    name = "jupyter-singularity-resume"
    description = f"""Ask for a session's devices now instead of at its next device call, and
    hold it back no longer if it was preempted; it waits in the queue like every other. {WHICH}"""
    examples = """
        jupyter singularity resume 3f9c
    """


main = ResumeApp.launch
