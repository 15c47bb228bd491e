# PYTHON_ARGCOMPLETE_OK
"""`jupyter singularity`: one command line, its commands loaded only when they are used.

Each command is a module with ``main(argv: list[str]) -> int | None`` (the exit code; None is 0).
Whatever stands behind the command's name is its own to parse, ``--help`` included. This module
imports next to nothing, so a command starts as fast as what it needs itself.
"""

from __future__ import annotations

import importlib
import os
import sys

COMMANDS = {
    "submit": (
        "singularity_kernel.batch.submit",
        "Run a notebook or a job file as a batch session; it outlives this terminal.",
    ),
    "run": (
        "singularity_scheduler.cli.run",
        "Run a command as a session: its processes get virtual devices.",
    ),
    "ls": ("singularity_scheduler.cli.ls", "List sessions, newest first."),
    "export": (
        "singularity_kernel.batch.export",
        "Write the job file of a batch session.",
    ),
    "show": ("singularity_scheduler.cli.show", "Show everything about one session."),
    "why": (
        "singularity_scheduler.cli.why",
        "Say why a session is in its state and what it waits for.",
    ),
    "logs": (
        "singularity_scheduler.cli.logs",
        "Print what a session's processes wrote; -f follows until it ends.",
    ),
    "history": ("singularity_scheduler.cli.history", "Show what happened to a session, and why."),
    "park": (
        "singularity_scheduler.cli.park",
        "Free a session's devices; its next device call takes devices again.",
    ),
    "preempt": (
        "singularity_scheduler.cli.preempt",
        "Take a session's devices and hold it back until it is resumed.",
    ),
    "keep": (
        "singularity_scheduler.cli.keep",
        "Keep a session alive for a while though nothing uses its devices.",
    ),
    "tier": ("singularity_scheduler.cli.tier", "Give a session another tier."),
    "priority": (
        "singularity_scheduler.cli.priority",
        "Give a session another priority inside its tier.",
    ),
    "suspend": (
        "singularity_scheduler.cli.suspend",
        "Put a session with its processes into the store and free its node.",
    ),
    "resume": (
        "singularity_scheduler.cli.resume",
        "Bring a suspended session back; let one have its devices now.",
    ),
    "migrate": (
        "singularity_scheduler.cli.migrate",
        "Let a session go on with another device, on another node or in another cluster.",
    ),
    "resize": (
        "singularity_scheduler.cli.resize",
        "Run a session's virtual devices on more or fewer physical ones.",
    ),
    "checkpoint": (
        "singularity_scheduler.cli.checkpoint",
        "Store a session as it is now, under a name or without one.",
    ),
    "checkpoints": (
        "singularity_scheduler.cli.checkpoints",
        "List what the store has of sessions; delete one of them.",
    ),
    "restore": (
        "singularity_scheduler.cli.restore",
        "Undo: let a session go back to an older checkpoint.",
    ),
    "fork": (
        "singularity_scheduler.cli.fork",
        "Begin a second session where a checkpoint of one is.",
    ),
    "reopen": (
        "singularity_scheduler.cli.reopen",
        "Take the end of a session back: it was closed by mistake.",
    ),
    "connect": (
        "singularity_scheduler.cli.connect",
        "Write the connection file of a session's kernel.",
    ),
    "cancel": ("singularity_scheduler.cli.cancel", "End sessions."),
    "groups": (
        "singularity_scheduler.cli.groups",
        "List the groups of runs that were submitted together.",
    ),
    "group": (
        "singularity_scheduler.cli.group",
        "Show, wait for or stop the runs of a group, such as a sweep's.",
    ),
    "nodes": (
        "singularity_scheduler.cli.nodes",
        "Show the nodes, their devices and who has them.",
    ),
    "clusters": (
        "singularity_scheduler.cli.clusters",
        "Show the clusters, their regions, and how full they are.",
    ),
    "drain": (
        "singularity_scheduler.cli.drain",
        "Empty a node, or give a device to no session any more; nothing is lost.",
    ),
    "return": (
        "singularity_scheduler.cli.give_back",
        "Let sessions have a drained node or device again.",
    ),
    "cordon": ("singularity_scheduler.cli.cordon", "Place nothing new on a node."),
    "uncordon": (
        "singularity_scheduler.cli.uncordon",
        "Place sessions on a cordoned node again.",
    ),
    "upgrade": (
        "singularity_scheduler.cli.upgrade",
        "Empty nodes, a few at a time, so that each can be upgraded.",
    ),
    "parameters": (
        "singularity_scheduler.cli.parameters",
        "Show the parameters of the policy, and change them while it runs.",
    ),
    "quota": (
        "singularity_scheduler.cli.quota",
        "Show the virtual clusters and how many devices belong to each; change that.",
    ),
    "usage": (
        "singularity_scheduler.cli.usage",
        "Show who used how much: device time, waits, preemptions, checkpoints.",
    ),
    "changes": (
        "singularity_scheduler.cli.changes",
        "Show who changed parameters, nodes and quotas, and why.",
    ),
    "top": ("singularity_scheduler.cli.top", "Watch the sessions and devices live."),
    "simulate": (
        "singularity_scheduler.cli.simulate",
        "Replay a trace of jobs through this scheduler and others, and compare them.",
    ),
    "completion": (
        "singularity_scheduler.cli.completion",
        "Print what bash, zsh or fish need to complete these commands.",
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
        "Install the kernelspec and the JupyterLab extension.",
    ),
    "environment": (
        "singularity_kernel.own_environment",
        "Make a Python environment of your own whose kernels are under the device proxy.",
    ),
    "demo": (
        "singularity_spawner.platform.demo",
        "The unattended tour: notebooks are preempted and go on, bit for bit.",
    ),
}
"""Command -> its module and what it does in one line."""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console script ``jupyter-singularity``; returns the exit code."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed: its number must not become some other file's
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115
    try:
        if "_ARGCOMPLETE" in os.environ:
            from .completing import complete

            return complete()
        return _run(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:  # while something was being loaded
        from .exits import INTERRUPTED

        return INTERRUPTED


def _run(words: list[str]) -> int:
    if len(words) > 1 and words[0] == "help" and words[1] in COMMANDS:
        words = [words[1], "--help"]
    if words and words[0] in COMMANDS:
        code = start(words[0], words[1:])
    else:
        from .app import SingularityApp

        code = SingularityApp.launch(words)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        from .output import drop

        drop(sys.stdout)
    return code


def start(name: str, words: list[str]) -> int:
    """Load the command's module, run it, return its exit code."""
    module = COMMANDS[name][0]
    try:
        return importlib.import_module(module).main(words) or 0
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.split(".")[0].startswith("singularity_") and missing != module:
            raise
        from singularity_proxy.errors import Unsupported

        failure = Unsupported(
            f"{missing} is not installed; install jupyter-singularity with the extra that has it "
            "(hub, kernel)",
            module=missing,
        )
    except Exception as error:
        from singularity_proxy.errors import SingularityError

        if not isinstance(error, SingularityError):
            raise
        failure = error  # type: ignore[assignment]
    from .exits import code_of
    from .output import say

    say(f"jupyter singularity {name}", failure, "--json" in words)
    return code_of(failure)


__all__ = ["COMMANDS", "main"]
