"""`python -m singularity_proxy.device --socket PATH`: one device proxy; with `--template FD` the
process that the node agent's proxies are copies of (see `template`).

Nothing is ever printed on stdout; what ends the process unexpectedly is one line on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from singularity_proxy.errors import SingularityError

from .template import serve_template


def main() -> int:
    """Parse the command line, load torch and the native module, serve until told to end."""
    parser = argparse.ArgumentParser(
        prog="python -m singularity_proxy.device",
        description="A device proxy: owns one physical device for one session.",
    )
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--socket", help="unix socket to listen at (created 0600)")
    kind.add_argument(
        "--template", type=int, metavar="FD", help="be copied for each socket asked for at FD"
    )
    parser.add_argument("--room", help="stands for the longer command line of a copy")
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

        path, warm = options.socket, options.warm
        if options.template is not None:
            path, warm = serve_template(options.template), True
            if path is None:
                return 0
        control = Control(path, orphan_s=options.orphan_s)
        if warm:
            control.proxy.warm_up()
        asyncio.run(control.run())
    except SingularityError as error:
        print(f"device proxy: {error.message}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"device proxy: cannot listen at {path}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
