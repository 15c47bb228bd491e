"""`jupyter singularity` without a command: help, version, and what is wrong with a word."""

from __future__ import annotations

from typing import Any

from singularity_proxy.errors import BadRequest

from singularity_scheduler.client.words import find_nearest

from .base import CommandApp
from .commands import COMMANDS


class SingularityApp(CommandApp):
    """The base command; by itself it only helps."""

    name = "jupyter-singularity"
    description = "Notebooks that keep their state while their accelerator comes and goes."
    examples = """
        jupyter singularity up --devices 2        # the whole platform on this machine
        jupyter singularity ls                    # my sessions; all commands: in its servers
        jupyter singularity why train             # why it waits
        jupyter singularity run python train.py   # a script as a session
        jupyter singularity doctor
    """
    most = None

    def emit_subcommands_help(self) -> Any:
        """The table of commands, one line each."""
        width = max(map(len, COMMANDS))
        yield from ("Commands", "========")
        for name, (_, text) in COMMANDS.items():
            yield f"{name:<{width}}  {text}"
        yield from ("", "Each has --help; `jupyter singularity completion` completes them.", "")

    def start(self) -> None:
        if self.words:
            raise BadRequest(unknown_command(self.words[0]), word=self.words[0])
        super().start()

    def execute(self) -> None:
        self.print_help()

    def complete(self, prefix: str) -> dict[str, str]:
        return {name: text for name, (_, text) in COMMANDS.items()}


def unknown_command(word: str) -> str:
    """The sentence about a word that is no command, with the nearest one that is."""
    if word in COMMANDS:
        return f"options stand behind the command: jupyter singularity {word} ..."
    near = find_nearest(word, COMMANDS)
    hint = f"did you mean '{near}'?" if near else f"it knows {', '.join(COMMANDS)}"
    return f"there is no command '{word}'; {hint}"
