"""The program that the node agent starts for each part of a gang.

The key is in the environment variable SINGULARITY_BRIDGE_KEY, where no other user can read it.
SIGTERM says that the part is over; a bridge that is killed instead is replaced, and the others wait
for it. One whose folder has gone ends as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from singularity_proxy import build
from singularity_proxy.errors import SingularityError

from .bridge import Bridge, Settings, write
from .identity import read_key

KEY = "SINGULARITY_BRIDGE_KEY"
FOLDER_SECONDS = 5.0
"""How often it is seen that the folder has gone."""


def main() -> int:
    """The command line; 0 when the part is over, 1 with a sentence when it cannot go on."""
    parser = argparse.ArgumentParser(prog="python -m singularity_proxy.elastic.bridge")
    parser.add_argument("--folder", type=Path, required=True, help="of the session's rings")
    parser.add_argument("--number", type=int, required=True, help="of this part, from 0")
    parser.add_argument("--parts", type=int, required=True, help="how many the gang has")
    parser.add_argument("--listen", required=True, help="address of this node for other parts")
    parser.add_argument("--port", type=int, default=0, help="for other parts; 0: any")
    parser.add_argument("--master-port", type=int, default=0, help="for this part's ranks; 0: any")
    parser.add_argument(
        "--peers", type=Path, help='JSON file {"0": "host:port"}, read when it changes'
    )
    parser.add_argument("--rendezvous", type=Path, help="written for the rendezvous of this part")
    parser.add_argument("--port-file", type=Path, required=True, help="written when it listens")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        settings = Settings(
            folder=options.folder,
            part=options.number,
            parts=options.parts,
            key=read_key(os.environ.pop(KEY, "")),
            host=options.listen,
            port=options.port,
            master_port=options.master_port,
            peers=options.peers,
            rendezvous=options.rendezvous,
        )
        asyncio.run(_run(settings, options.port_file))
    except (SingularityError, OSError) as error:
        print(f"the bridge cannot go on: {error}", file=sys.stderr)
        return 1
    return 0


async def _run(settings: Settings, port_file: Path) -> None:
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    mirror = build.load().Mirror(str(settings.folder), settings.part)
    async with Bridge(settings, mirror) as bridge:
        write(port_file, {"port": bridge.port, "master_port": bridge.master_port})
        await _until(over, settings.folder)


async def _until(over: asyncio.Event, folder: Path) -> None:
    """Until it is asked to end, or nothing is left of the session."""
    while await asyncio.to_thread(folder.is_dir):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FOLDER_SECONDS):
                await over.wait()
                return


if __name__ == "__main__":
    sys.exit(main())
