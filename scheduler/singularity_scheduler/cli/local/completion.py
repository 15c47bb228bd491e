"""`jupyter singularity completion`: what a shell needs to complete our commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from singularity_proxy.errors import BadRequest, Unsupported
from traitlets import Bool

from singularity_scheduler.cli.framework import output
from singularity_scheduler.cli.framework.base import CommandApp

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "jupyter-singularity"


class CompletionApp(CommandApp):
    name = "jupyter-singularity-completion"
    synopsis = "bash|zsh|fish"
    fewest = 1
    most: ClassVar[int | None] = 1
    description = """Print the code with which a shell completes commands, options, states and
    sessions. It completes `jupyter-singularity`; with --jupyter also `jupyter singularity`, and
    with it every other `jupyter` command, which runs that command to ask it: only do it when
    all of those that you have can answer, as those of the Jupyter project do."""
    examples = """
        eval "$(jupyter singularity completion bash --jupyter)"     # in ~/.bashrc
        eval "$(jupyter singularity completion zsh --jupyter)"      # in ~/.zshrc, after compinit
        jupyter singularity completion fish --jupyter | source      # in config.fish
    """

    jupyter = Bool(False, config=True, help="Complete `jupyter singularity` as well.")
    flags = {
        "jupyter": ({"CompletionApp": {"jupyter": True}}, "Complete `jupyter singularity` too."),
        **CommandApp.flags,
    }

    def execute(self) -> None:
        shell = self.words[0]
        if shell not in SHELLS:
            raise BadRequest(f"there is no completion for '{shell}', only for {', '.join(SHELLS)}")
        try:
            from argcomplete.shell_integration import shellcode
        except ImportError:
            raise Unsupported(
                "argcomplete is not installed, so nothing can be completed: pip install argcomplete"
            ) from None
        programs = [PROGRAM, "jupyter"] if self.jupyter else [PROGRAM]
        output.emit(shellcode(programs, shell=shell))

    def complete(self, prefix: str) -> Iterable[str]:
        return SHELLS


main = CompletionApp.launch
