"""`jupyter singularity node`: this machine joins a fleet, and runs its agent."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from typing import ClassVar

from singularity_proxy.errors import BadRequest, Conflict
from traitlets import Bool, Unicode

from singularity_scheduler.cli.framework.base import ReportApp
from singularity_scheduler.cli.framework.exits import CannotWrite
from singularity_scheduler.installed import default_state_dir, own_version

VERBS = {"join": 2, "run": 1}
"""Verb -> how many words it is, with what it is about."""


class NodeApp(ReportApp):
    name = "jupyter-singularity-node"
    synopsis = "join STRING | run [-- AGENT OPTIONS]"
    fewest = 1
    most: ClassVar[int | None] = 2
    description = """Make this machine a node of a fleet. `join STRING` takes what `fleet token
    NODE` printed on the service's machine: it makes a key, which never leaves this machine, and
    keeps the certificate that it gets for it. With - the string is read from standard input, so
    that no list of processes shows it. `run` is the node's agent, which connects to the service
    and goes on doing so; what follows -- are its own options. When it is told to stop its sessions
    end; when it is killed they go on, and the next one takes them over."""
    examples = """
        jupyter singularity node join singularity-join://...
        jupyter singularity node run -- --NodeAgent.tunnel_ip=192.0.2.7
    """

    state = Unicode(
        config=True,
        help="""The state folder of this machine's agent. Default: jupyter-singularity/node in
        $XDG_STATE_HOME or ~/.local/state.""",
    )
    again = Bool(
        False,
        config=True,
        help="For `join`: replace what this machine has of a fleet that it joined before.",
    )
    aliases = {"state": "NodeApp.state", **ReportApp.aliases}
    flags = {
        "again": ({"NodeApp": {"again": True}}, "Join though it has joined before."),
        **ReportApp.flags,
    }
    agent_options: tuple[str, ...] = ()

    def parse_command_line(self, argv: list[str] | None = None) -> None:
        """Everything behind -- is the agent's, verbatim."""
        words = sys.argv[1:] if argv is None else list(argv)
        if "--" in words:
            at = words.index("--")
            words, self.agent_options = words[:at], tuple(words[at + 1 :])
        super().parse_command_line(words)

    def execute(self) -> None:
        verb = self.words[0]
        if VERBS.get(verb) != len(self.words) or (self.agent_options and verb != "run"):
            usage = f"jupyter singularity node {self.synopsis}"
            raise BadRequest(f"'{' '.join(self.words[:1])}' cannot be done like this: {usage}")
        folder = os.path.expanduser(self.state) or os.path.join(default_state_dir(), "node")
        if verb == "join":
            self._join(folder)
        else:
            self._run(folder)

    def _join(self, folder: str) -> None:
        from singularity_proxy.membership.identity import Identity
        from singularity_proxy.membership.join_string import JoinString
        from singularity_proxy.membership.joining import join  # needs a library

        given = sys.stdin.readline() if self.words[1] == "-" else self.words[1]
        string = JoinString.parse(given)
        if Identity.kept(folder) and not self.again:
            node = Identity.load(folder).membership.node
            raise Conflict(
                f"this machine has joined a fleet as '{node}' already ({folder}), so nothing was "
                "done and the token is as good as before: --again joins anew"
            )
        require_writable(folder)  # before the token is used up
        identity = asyncio.run(join(string, own_version()))
        try:
            identity.save(folder)
        except OSError as error:
            raise CannotWrite(
                f"the certificate of '{string.node}' could not be kept in {folder} "
                f"({error.strerror}), and the token is used up: make room and another token"
            ) from None
        told = {"node": string.node, "state": folder}
        self.show(
            told,
            lambda: (
                f"this machine is the node '{string.node}' from now on: `jupyter singularity node "
                "run` connects it"
            ),
        )

    def _run(self, folder: str) -> None:
        from singularity_proxy.membership.identity import Identity

        from singularity_scheduler.fleet.local_agent import ALLOCATOR

        Identity.load(folder)  # says so when it has not joined
        command = [sys.executable, "-m", "singularity_scheduler.agent"]
        command += [f"--NodeAgent.state_dir={folder}", *self.agent_options]
        os.execve(sys.executable, command, {**ALLOCATOR, **os.environ})

    def complete(self, prefix: str) -> Iterable[str]:
        return VERBS


def require_writable(folder: str) -> None:
    """Make the folder; raises `BadRequest` when nothing can be kept there."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise BadRequest(
            f"nothing can be kept in {folder} ({error.strerror}), so nothing was done and the "
            "token is as good as before: give another folder with --state"
        ) from None


main = NodeApp.launch
