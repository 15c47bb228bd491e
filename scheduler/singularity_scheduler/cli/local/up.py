"""`jupyter singularity up`: the whole platform on this machine, in the foreground.

The platform itself is in `singularity_spawner.platform`; this is its command line.
"""

from __future__ import annotations

from pathlib import Path

from traitlets import Bool, Integer, Unicode

from singularity_scheduler.cli.framework.base import CommandApp


class UpApp(CommandApp):
    """Starts the platform and stays until it is stopped."""

    name = "jupyter-singularity-up"
    description = """Start JupyterHub, the scheduler service and a node agent on 127.0.0.1 and say
    how to log in. Ctrl-C suspends the notebooks, which wait for the next start, and stops
    everything that was started; a second one does not wait for them. Exit codes: 0 stopped, 1 a
    part of it failed, 2 refused, nothing was started."""
    examples = """
        jupyter singularity up --devices 4 --port 8000
        jupyter singularity up --nodes 2 --netns
    """

    port = Integer(
        None,
        allow_none=True,
        config=True,
        help="Port for the browser. None: 8000, or a free one when that is taken.",
    )
    devices = Integer(2, config=True, help="Number of cpu devices, of each node.")
    nodes = Integer(
        1,
        config=True,
        help="""Number of nodes on this machine, each with an agent, folders and devices of its own;
        sessions move between them through the checkpoint store.""",
    )
    netns = Bool(
        False,
        config=True,
        help="""Give each node a network namespace with an address of its own, made now and removed
        at the end. Needs root. Notebooks then reach this machine and each other only.""",
    )
    state = Unicode(
        config=True,
        help="""Folder for homes, accounts, passwords, ledger and log. Empty:
        /var/lib/jupyter-singularity for root, for others jupyter-singularity in the folder of
        their data (XDG_DATA_HOME).""",
    )
    aliases = {
        "port": "UpApp.port",
        "devices": "UpApp.devices",
        "nodes": "UpApp.nodes",
        "state": "UpApp.state",
        **CommandApp.aliases,
    }
    flags = {
        "netns": (
            {"UpApp": {"netns": True}},
            "Give each node a network namespace with an address of its own (root).",
        ),
        **CommandApp.flags,
    }

    def execute(self) -> int:
        # Loaded here: help and wrong options need no Hub.
        from singularity_spawner.platform.run import run

        folder = Path(self.state).expanduser() if self.state else None
        return run(folder, port=self.port, devices=self.devices, nodes=self.nodes, netns=self.netns)


main = UpApp.launch
