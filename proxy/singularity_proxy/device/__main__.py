"""`python -m singularity_proxy.device --socket PATH`: one device proxy, started by the node agent.

Nothing is ever printed on stdout; what ends the process unexpectedly is one line on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from singularity_proxy.errors import SingularityError


def main() -> int:
    """Parse the command line, load torch and the native module, serve until told to end."""
    parser = argparse.ArgumentParser(
        prog="python -m singularity_proxy.device",
        description="A device proxy: owns one physical device for one session.",
    )
    parser.add_argument("--socket", required=True, help="unix socket to listen at (created 0600)")
    parser.add_argument(
        "--warm",
        action="store_true",
        help="run the first operations before listening, so that the first session does not wait",
    )
    parser.add_argument(
        "--orphan-s",
        type=float,
        default=120.0,
        help="seconds without a control connection after which it parks and ends; 0: never",
    )
    options = parser.parse_args()
    # Workers may ask for deterministic algorithms at any time, and cuBLAS has them only with a
    # workspace of a fixed size, which is read once. (NVIDIA: cuBLAS, "Results reproducibility")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        # The slow part (importing torch) comes before the socket exists: who sees it can use it.
        from .control import Control

        control = Control(options.socket, orphan_s=options.orphan_s)
        if options.warm:
            control.proxy.warm_up()
        asyncio.run(control.run())
    except SingularityError as error:
        print(f"device proxy: {error.message}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"device proxy: cannot listen at {options.socket}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
