"""`jupyter singularity park`: free a session's devices, keep its process and state."""

from __future__ import annotations

from .verbs import WHICH, VerbApp


class ParkApp(VerbApp):
    name = "jupyter-singularity-park"
    description = f"""Free a session's devices: variables and tensors stay, and its next device
    call takes devices again. {WHICH}"""
    examples = """
        jupyter singularity park train.ipynb
    """


main = ParkApp.launch
