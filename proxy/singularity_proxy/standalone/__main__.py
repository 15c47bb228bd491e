"""`python -m singularity_proxy.standalone [--devices V] [--physical P] [--nproc N] train.py ...`"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import NoReturn

from singularity_proxy.elastic.ranks import RankFailed, run_ranks, script

from .session import Standalone

GRACE_S = 10.0
"""So long the script has to end when this process is told to; then it is killed."""
ENDING = (signal.SIGTERM, signal.SIGHUP)


def _end(number: int, _: object) -> NoReturn:
    """Leave `main` in order: the script, the proxies and the session's files end with it."""
    for ending in ENDING:
        signal.signal(ending, signal.SIG_IGN)
    raise SystemExit(128 + number)


def run_script(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run `command` to its end; returns its exit code. When this process is told to end, so is the
    script; it is killed after `GRACE_S`."""
    with subprocess.Popen(command, env=dict(environ)) as script:
        try:
            return script.wait()
        except SystemExit:
            script.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                script.wait(GRACE_S)
            raise
        finally:
            script.kill()


def main() -> int:
    """Run a script, as one process or as ranks; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m singularity_proxy.standalone",
        description="Run a script under the device proxy.",
    )
    parser.add_argument("--device-type", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--devices", type=int, default=1, help="virtual devices")
    parser.add_argument("--physical", type=int, help="physical ones; default: as many")
    parser.add_argument(
        "--nproc", type=int, default=1, help="ranks, each with its environment of torchrun's"
    )
    parser.add_argument(
        "--threads", type=int, default=0, help="threads per proxy; 0: torch's default"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="script.py and its arguments")
    options = parser.parse_args()
    if not options.command:
        parser.error("name a script to run")
    if options.nproc < 1:
        parser.error("--nproc must be 1 or more")
    command = script(*options.command)
    for ending in ENDING:
        signal.signal(ending, _end)
    with Standalone(
        options.device_type, options.devices, threads=options.threads, physical=options.physical
    ) as session:
        if options.nproc == 1:
            return run_script(command, session.env())
        try:
            run_ranks(command, options.nproc, session.env())
        except RankFailed as error:
            print(error)
            return error.code if error.code > 0 else 128 - error.code
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
