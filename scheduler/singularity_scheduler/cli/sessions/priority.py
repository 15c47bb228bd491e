"""`jupyter singularity priority`: give a session another priority inside its tier."""

from __future__ import annotations

from .tier import WordApp
from .verbs import WHICH


class PriorityApp(WordApp):
    name = "jupyter-singularity-priority"
    synopsis = "SESSION low|medium|high"
    words_of = ("low", "medium", "high")
    description = f"""Give a session another priority: it orders sessions of one tier. {WHICH}"""
    examples = """
        jupyter singularity priority sweep.ipynb low
    """


main = PriorityApp.launch
