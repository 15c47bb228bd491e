"""`jupyter singularity up`: the whole platform on this machine, in the foreground.

The platform itself is in `singularity_spawner.platform`; this is its command line.
"""

from __future__ import annotations

from pathlib import Path

from traitlets import Integer, Unicode

from .base import CommandApp


class UpApp(CommandApp):
    """Starts the platform and stays until it is stopped."""

    name = "jupyter-singularity-up"
    description = """Start JupyterHub, the scheduler service and a node agent on 127.0.0.1 and say
    how to log in. Ctrl-C stops everything that was started. Exit codes: 0 stopped, 1 a part of it
    failed, 2 refused, nothing was started."""
    examples = """
        jupyter singularity up --devices 4 --port 8000
    """

    port = Integer(
        None,
        allow_none=True,
        config=True,
        help="Port for the browser. None: 8000, or a free one when that is taken.",
    )
    devices = Integer(2, config=True, help="Number of cpu devices.")
    state = Unicode(
        config=True,
        help="""Folder for homes, accounts, passwords, ledger and log. Empty:
        /var/lib/jupyter-singularity for root, for others jupyter-singularity in the folder of
        their data (XDG_DATA_HOME).""",
    )
    aliases = {
        "port": "UpApp.port",
        "devices": "UpApp.devices",
        "state": "UpApp.state",
        **CommandApp.aliases,
    }

    def execute(self) -> int:
        # Loaded here: help and wrong options need no Hub.
        from singularity_spawner.platform.run import run

        folder = Path(self.state).expanduser() if self.state else None
        return run(folder, port=self.port, devices=self.devices)


main = UpApp.launch
