"""The commands of `jupyter singularity`: name -> (module with its `main`, or with a class for each
of its commands in `APPS`; what it does)."""

from __future__ import annotations

import importlib
from typing import Any

from singularity_scheduler.model.verbs import VERBS

COMMANDS = {
    "submit": (
        "singularity_kernel.batch.submitting.submit",
        "Run a notebook or a job file as a batch session; it outlives this terminal.",
    ),
    "run": (
        "singularity_scheduler.cli.runs.run",
        "Run a command as a session: its processes get virtual devices.",
    ),
    "ls": ("singularity_scheduler.cli.look.ls", "List sessions, newest first."),
    "export": (
        "singularity_kernel.batch.submitting.export",
        "Write the job file of a batch session.",
    ),
    "show": ("singularity_scheduler.cli.look.show", "Show everything about one session."),
    "why": (
        "singularity_scheduler.cli.look.why",
        "Say why a session is in its state and what it waits for.",
    ),
    "logs": (
        "singularity_scheduler.cli.look.logs",
        "Print what a session's processes wrote; -f follows until it ends.",
    ),
    "history": (
        "singularity_scheduler.cli.look.history",
        "Show what happened to a session, and why.",
    ),
    **{
        row.name: (
            f"singularity_scheduler.cli.{row.command.module or 'sessions.verbs'}",
            row.command.summary,
        )
        for row in VERBS
        if row.command
    },
    "checkpoints": (
        "singularity_scheduler.cli.look.checkpoints",
        "List what the store has of sessions; delete one of them.",
    ),
    "connect": (
        "singularity_scheduler.cli.look.connect",
        "Write the connection file of a session's kernel.",
    ),
    "cancel": ("singularity_scheduler.cli.sessions.cancel", "End sessions."),
    "groups": (
        "singularity_scheduler.cli.runs.groups",
        "List the groups of runs that were submitted together.",
    ),
    "group": (
        "singularity_scheduler.cli.runs.group",
        "Show, wait for or stop the runs of a group, such as a sweep's.",
    ),
    "nodes": (
        "singularity_scheduler.cli.look.nodes",
        "Show the nodes, their devices and who has them.",
    ),
    "clusters": (
        "singularity_scheduler.cli.look.clusters",
        "Show the clusters, their regions, and how full they are.",
    ),
    "drain": (
        "singularity_scheduler.cli.admin.drain",
        "Empty a node, or give a device to no session any more; nothing is lost.",
    ),
    "return": (
        "singularity_scheduler.cli.admin.give_back",
        "Let sessions have a drained node or device again.",
    ),
    "cordon": ("singularity_scheduler.cli.admin.cordon", "Place nothing new on a node."),
    "uncordon": (
        "singularity_scheduler.cli.admin.uncordon",
        "Place sessions on a cordoned node again.",
    ),
    "upgrade": (
        "singularity_scheduler.cli.admin.upgrade",
        "Empty nodes, a few at a time, so that each can be upgraded.",
    ),
    "parameters": (
        "singularity_scheduler.cli.admin.parameters",
        "Show the parameters of the policy, and change them while it runs.",
    ),
    "quota": (
        "singularity_scheduler.cli.admin.quota",
        "Show the virtual clusters and how many devices belong to each; change that.",
    ),
    "usage": (
        "singularity_scheduler.cli.look.usage",
        "Show who used how much: device time, waits, preemptions, checkpoints.",
    ),
    "changes": (
        "singularity_scheduler.cli.admin.changes",
        "Show who changed parameters, nodes and quotas, and why.",
    ),
    "top": ("singularity_scheduler.cli.look.top", "Watch the sessions and devices live."),
    "simulate": (
        "singularity_scheduler.cli.local.simulate",
        "Replay a trace of jobs through this scheduler and others, and compare them.",
    ),
    "completion": (
        "singularity_scheduler.cli.local.completion",
        "Print what bash, zsh or fish need to complete these commands.",
    ),
    "up": (
        "singularity_scheduler.cli.local.up",
        "Start JupyterHub, the scheduler and a node agent on this machine.",
    ),
    "fleet": (
        "singularity_scheduler.cli.local.fleet",
        "Let other machines join this scheduler, see who has, and withdraw them.",
    ),
    "node": (
        "singularity_scheduler.cli.local.node",
        "Make this machine a node of a scheduler on another one, and run its agent.",
    ),
    "doctor": (
        "singularity_scheduler.cli.local.doctor",
        "Say what this machine can and cannot do, and why.",
    ),
    "install": (
        "singularity_kernel.install",
        "Install the kernelspec and the JupyterLab extension.",
    ),
    "environment": (
        "singularity_kernel.provision.own_environment",
        "Make a Python environment of your own whose kernels are under the device proxy.",
    ),
    "demo": (
        "singularity_spawner.platform.demo.command",
        "The unattended tour: notebooks are preempted and go on, bit for bit.",
    ),
}


def load_command(name: str) -> tuple[Any, Any]:
    """Import a command; return its module and, if that has several, its class (else None)."""
    module = importlib.import_module(COMMANDS[name][0])
    return module, getattr(module, "APPS", {}).get(name)
