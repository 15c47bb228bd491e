"""The commands of `jupyter singularity`: name -> (module with its `main`, what it does)."""

from __future__ import annotations

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
