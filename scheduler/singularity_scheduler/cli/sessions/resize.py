"""`jupyter singularity resize`: run a session's virtual devices on more or fewer physical ones."""

from __future__ import annotations

from typing import Any

from singularity_proxy.errors import BadRequest

from .verbs import WHICH, VerbApp


class ResizeApp(VerbApp):
    name = "jupyter-singularity-resize"
    synopsis = "SESSION DEVICES"
    fewest = 2
    most = 2
    description = f"""Run a session on so many physical devices from now on. Its code goes on with
    the virtual devices that it has, whose number does not change; those that come to share a
    physical one take longer, and nothing is lost. When fewer are free it gets the others later;
    one without devices gets so many with its next ones. A session with a scale policy may still be
    shrunk below that for others, and grows back. {WHICH}"""
    examples = """
        jupyter singularity resize train.ipynb 1
        jupyter singularity resize 3f9c 4
    """

    def details(self) -> tuple[Any, ...]:
        word = self.words[1]
        if not word.isdecimal():
            raise BadRequest(
                f"'{word}' is no number of devices, for example 1; nothing was changed"
            )
        return (int(word),)


main = ResizeApp.launch
