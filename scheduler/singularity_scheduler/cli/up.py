"""`jupyter singularity up`: the whole platform on this machine, in the foreground.

The platform itself is in `singularity_spawner.platform`; this is its command line.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main(argv: list[str]) -> int:
    """Run until Ctrl-C; returns the exit code (0 stopped, 1 failed, 2 refused)."""
    # Loaded here: the scheduler's own processes need no Hub.
    from singularity_spawner.platform.run import default_state_dir, run

    parser = argparse.ArgumentParser(
        prog="jupyter singularity up",
        description="Start JupyterHub, the scheduler service and a node agent on 127.0.0.1 and "
        "say how to log in. Ctrl-C stops everything that was started.",
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="port for the browser (default: 8000, or a free one when that is taken)",
    )
    parser.add_argument(
        "--devices", type=int, default=2, metavar="N", help="number of cpu devices (default: 2)"
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="folder for homes, accounts, passwords, ledger and log "
        f"(default: {default_state_dir()})",
    )
    options = parser.parse_args(argv)
    return run(options.state, port=options.port, devices=options.devices)
