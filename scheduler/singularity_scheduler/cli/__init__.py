"""`jupyter singularity`: one command line, its sub-commands loaded only when they are used.

Each sub-command is a module with ``main(argv: list[str]) -> int | None`` (the exit code; None is
0). Whatever stands behind the sub-command's name is its own to parse, ``--help`` included.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from typing import Any

from jupyter_core.application import JupyterApp
from singularity_proxy.errors import SingularityError
from traitlets.config import Application

COMMANDS = {
    "run": (
        "singularity_scheduler.cli.run",
        "Run a command as a session: its processes get virtual devices.",
    ),
    "up": (
        "singularity_scheduler.cli.up",
        "Start JupyterHub, the scheduler and a node agent on this machine.",
    ),
    "doctor": (
        "singularity_scheduler.cli.doctor",
        "Say what this machine can and cannot do, and why.",
    ),
    "install": (
        "singularity_kernel.install",
        "Install the kernelspec and the server extension's configuration.",
    ),
    "demo": (
        "singularity_spawner.platform.demo",
        "The unattended tour: notebooks are preempted and go on, bit for bit.",
    ),
}

EXIT_FAILED = 70
"""A sub-command ended with one of our typed errors that it does not handle itself."""


class Command(Application):  # type: ignore[misc]
    """Stands in for a sub-application until it is started (see `Application.subcommands`)."""

    def initialize(self, argv: list[str] | None = None) -> None:
        """Keep the words as they are: the module parses them."""
        self.words = list(argv or ())

    def start(self) -> None:
        """Load the module, run it, end the process with its exit code."""
        module = COMMANDS[self.name][0]
        SingularityApp.clear_instance()  # the module may start an application of its own
        try:
            code = importlib.import_module(module).main(self.words)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if missing.split(".")[0].startswith("singularity_") and missing != module:
                raise
            print(
                f"jupyter singularity {self.name}: {missing} is not installed; "
                "install jupyter-singularity with the extra that has it (hub, kernel)",
                file=sys.stderr,
            )
            code = EXIT_FAILED
        except SingularityError as error:
            print(f"jupyter singularity {self.name}: {error.message}", file=sys.stderr)
            code = EXIT_FAILED
        sys.exit(code or 0)


def _factory(name: str) -> Any:
    return lambda parent: Command(parent=parent, name=name)


class SingularityApp(JupyterApp):  # type: ignore[misc]
    """The base command; by itself it only helps."""

    name = "jupyter-singularity"
    version = metadata.version("jupyter-singularity")
    description = "Notebooks that keep their state while their accelerator comes and goes."
    examples = """
        jupyter singularity up --devices 2        # the whole platform on this machine
        jupyter singularity run python train.py   # in a terminal of a server of the platform
        jupyter singularity doctor
    """
    subcommands = {name: (_factory(name), text) for name, (_, text) in COMMANDS.items()}

    def initialize(self, argv: list[str] | None = None) -> None:
        words = sys.argv[1:] if argv is None else list(argv)
        if words and not words[0].startswith("-") and words[0] not in (*COMMANDS, "help"):
            self.exit_with_unknown(words[0])
        super().initialize(argv)

    def exit_with_unknown(self, word: str) -> None:
        import difflib

        near = difflib.get_close_matches(word, COMMANDS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        print(
            f"jupyter singularity: there is no command '{word}'; {hint}"
            f"It knows {', '.join(COMMANDS)}.",
            file=sys.stderr,
        )
        sys.exit(2)

    def start(self) -> None:
        if self.subapp is not None:
            self.subapp.start()
            return
        self.print_help()


def main(argv: list[str] | None = None) -> None:
    """Entry point of the console script ``jupyter-singularity``."""
    SingularityApp.launch_instance(argv)


__all__ = ["COMMANDS", "SingularityApp", "main"]
