"""`jupyter singularity run [--tier T] [--devices N] COMMAND...`: a command as a session.

For terminals of a server of the platform. The command is an ordinary child of this process with
its terminal, standard streams and signals; only its environment says that it belongs to a session,
so `import torch` in it and in its children sees virtual devices. The session ends with it. Inside
a session (a notebook's ``!``) the command simply joins that session.

Exit codes: the command's own; 128 + N when signal N ended it; 126 it cannot be executed; 127 it was
not found; else those of `exits`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from singularity_proxy.capsule.process import write_exit_code
from singularity_proxy.errors import BadRequest
from traitlets import Bool, Float, Integer, Unicode, default

from singularity_scheduler.cli.framework import output
from singularity_scheduler.cli.framework.base import (
    CommandApp,
    split_names,
    wanted_devices,
    wanted_share,
)

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127

LOST_ANSWER_S = 60.0
"""How long a request whose answer was lost is repeated before the command is given up."""

PASSED_ON = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
SI_KERNEL = 0x80
"""si_code of what the terminal sends: to the whole foreground group, the command included."""


class RunApp(CommandApp):
    """Starts the session and the command, and ends as the command ends."""

    name = "jupyter-singularity-run"
    synopsis = "[--tier T] [--devices N] COMMAND..."
    description = """Run a command as a session, for terminals of a server of the platform: it
    keeps its terminal, streams and signals, and it and its children see virtual devices. The
    session ends with it. Inside a session (a notebook's `!`) the command simply joins that
    session.

    Exit codes: the command's own; 128 + N when signal N ended it; 126 it cannot be executed; 127
    it was not found; else those of all commands."""
    examples = """
        jupyter singularity run python train.py --epochs 3
        jupyter singularity run --tier basic --devices 2 torchrun --nproc-per-node 2 train.py
    """

    tier = Unicode(
        config=True,
        help="""SLA tier of the run: "premium", "standard" or "basic". Empty: the scheduler's
        default. Default: SINGULARITY_TIER, which the spawn form sets.""",
    ).tag(argcompleter=lambda **_: ["premium", "standard", "basic"])
    devices = Integer(
        allow_none=True,
        default_value=None,
        config=True,
        help="""Virtual devices: how many accelerators the command sees. None: SINGULARITY_DEVICES,
        which the spawn form sets, else the scheduler's default.""",
    )
    locations = Unicode(
        config=True,
        help="""Clusters and regions that it may be in, separated by commas; see `clusters`. Empty:
        anywhere. Default: SINGULARITY_LOCATIONS.""",
    )
    share = Float(
        allow_none=True,
        default_value=None,
        config=True,
        help="""Part of the time of one device that it asks for, from 0.001 to 1: below 1 it takes
        turns with others that share. None: SINGULARITY_DEVICE_SHARE, else whole devices.""",
    )
    elastic = Bool(
        False,
        config=True,
        help="""It may go on with fewer physical devices than virtual ones: it starts on fewer when
        no more are free, gives some up before others are paused, and gets them back.""",
    )
    flags = {
        "elastic": (
            {"RunApp": {"elastic": True}},
            "It may go on with fewer physical devices than virtual ones.",
        ),
        **CommandApp.flags,
    }
    aliases = {
        "tier": "RunApp.tier",
        "share": "RunApp.share",
        "devices": "RunApp.devices",
        "locations": "RunApp.locations",
        **CommandApp.aliases,
    }

    @default("tier")  # type: ignore[untyped-decorator]
    def _default_tier(self) -> str:
        return os.environ.get("SINGULARITY_TIER", "")

    @default("locations")  # type: ignore[untyped-decorator]
    def _default_locations(self) -> str:
        return os.environ.get("SINGULARITY_LOCATIONS", "")

    def parse_command_line(self, argv: list[str] | None = None) -> None:
        """Everything from the first word that is no option of ours on is the command, verbatim."""
        words = sys.argv[1:] if argv is None else list(argv)
        own, self.command = split_command(words)
        super().parse_command_line(own)

    def execute(self) -> int:
        devices, locations = wanted_devices(self.devices), split_names(self.locations)
        share = wanted_share(self.share)
        return run(
            self.command,
            tier=self.tier,
            devices=devices,
            locations=locations,
            share=share,
            elastic=self.elastic,
        )

    def complete(self, prefix: str) -> None:
        """File names: the words are a command's."""


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(our options, the command): an option's value may follow as a word of its own, and ``--``
    ends the options."""
    takes_value = {f"--{name}" for name in RunApp.aliases}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        if words[index] == "--":
            return list(words[:index]), list(words[index + 1 :])
        index += 2 if words[index] in takes_value else 1
    return list(words[:index]), list(words[index:])


def run(
    command: Sequence[str],
    *,
    tier: str = "",
    devices: int | None = None,
    locations: Sequence[str] = (),
    share: float | None = None,
    elastic: bool = False,
) -> int:
    """Run `command` as a session and return the exit code; see the module's text."""
    if not command:
        raise BadRequest(
            "there is no command to run: jupyter singularity run [--tier T] COMMAND..."
        )
    program = shutil.which(command[0])
    if program is None:
        if os.path.exists(command[0]) and os.sep in command[0]:
            _say(f"'{command[0]}' cannot be executed; no session was started")
            return EXIT_NOT_EXECUTABLE
        _say(f"the command '{command[0]}' was not found; no session was started")
        return EXIT_NOT_FOUND
    if os.environ.get("SINGULARITY_SESSION"):
        return _run_child(command, dict(os.environ))
    env = asyncio.run(_begin(command, tier, devices, locations, share, elastic))
    # The session is bound to this process: the node agent ends it when this process ends, however
    # that comes about. An agent that is away then cannot see the exit code.
    code = _run_child(command, env)
    write_exit_code(code, env)
    return code


async def _begin(
    command: Sequence[str],
    tier: str,
    devices: int | None,
    locations: Sequence[str],
    share: float | None,
    elastic: bool,
) -> dict[str, str]:
    """Start the session; returns the environment of its processes."""
    # Only now: a wrong command line needs no client.
    from singularity_proxy.capsule.launcher import stripped_environment

    from singularity_scheduler.client import ServiceClient
    from singularity_scheduler.client.repeat import ask_until_answered

    client = ServiceClient.from_environment()
    launch: dict[str, Any] = {
        "mode": "joined",
        "argv": list(command),
        "env": {},  # the child is ours, and so is its environment
        "cwd": os.getcwd(),
        "connection": None,
        "owner_pid": os.getpid(),
    }
    # A session may have been started of which nobody but this process would know.
    created = await ask_until_answered(
        lambda key: client.create_session(
            kind="batch",
            name=_name(command[0]),
            tier=tier or None,
            devices=devices,
            locations=locations,
            device_share=share,
            elastic=elastic or None,
            launch=launch,
            key=key,
        ),
        LOST_ANSWER_S,
        only_if_lost=True,
    )
    return {**stripped_environment(os.environ), **created["launch"]["env"]}


def _name(program: str) -> str:
    """What people call the session; the scheduler takes 200 printable characters."""
    return "".join(c for c in os.path.basename(program) if c.isprintable())[:200]


def _run_child(command: Sequence[str], env: dict[str, str]) -> int:
    """Start the command, pass signals on to it, return how it ended."""
    watched = {*PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        try:
            # This process has no threads: asyncio.run has ended the ones it made.
            child = subprocess.Popen(list(command), env=env, preexec_fn=unblock)  # noqa: PLW1509
        except OSError as error:
            _say(f"'{command[0]}' cannot be executed ({error.strerror})")
            return EXIT_NOT_EXECUTABLE
        while child.poll() is None:
            info = signal.sigwaitinfo(watched)
            if info.si_signo != signal.SIGCHLD and info.si_code != SI_KERNEL:
                child.send_signal(info.si_signo)
        code = child.returncode
        return code if code >= 0 else 128 - code
    finally:
        unblock()


def _say(sentence: str) -> None:
    output.note(f"jupyter singularity run: {sentence}")


main = RunApp.launch
