"""`jupyter singularity demo`: the unattended tour, on a platform of its own with two devices.

Two notebooks train; two premium batch runs take their devices away (one notebook is idle, the other
in the middle of a cell); both go on by themselves on the other device, and every loss is bitwise
that of an uninterrupted native run. Then a batch run is preempted three times in the middle of its
one cell, and its output notebook equals that of an uninterrupted run. At last, on a platform with
two nodes, a notebook is moved in the middle of a cell, and goes on by itself when its node dies
(left out, with the reason, without root or CRIU). Exit code 0 only when every check holds.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from singularity_proxy.errors import SingularityError
from singularity_scheduler.cli.framework.base import CommandApp

from singularity_spawner.platform.notebook import Notebook
from singularity_spawner.platform.platform import Platform
from singularity_spawner.platform.ports import free_ports
from singularity_spawner.platform.server import Server

from . import acts as demo_acts
from . import nodes as demo_nodes
from . import runs as demo_runs
from .tour import ONE_THREAD, Sessions, Tour

USERS = {"alice": "standard", "bob": "basic", "carol": "premium"}
"""Who logs in, and the tier each picks."""


async def tour(platform: Platform, t: Tour, folder: Path) -> None:
    """Log everybody in, open notebooks A and B, play the acts."""
    sessions = Sessions(platform.service())
    servers, open_notebooks = {}, {}
    for user, tier in USERS.items():
        t.say(f"{user} logs in and picks tier {tier}, 1 device")
        url = await t.step(
            f"{user}'s server starts", platform.start_server(user, {"tier": tier, "devices": 1})
        )
        servers[user] = Server(url, await platform.user_token(user))
    try:
        for name, user in (("A", "alice"), ("B", "bob")):
            notebook = Notebook(servers[user].url, await platform.user_token(user), name)
            open_notebooks[name] = notebook
            await t.step(f"kernel of notebook {name}", notebook.open())
            await sessions.remember(notebook)
        await demo_acts.notebooks(
            t, sessions, folder, servers["carol"], open_notebooks["A"], open_notebooks["B"]
        )
    finally:
        for notebook in open_notebooks.values():
            await notebook.close()
    await demo_runs.runs(t, sessions, folder, platform, servers["bob"], servers["carol"])


async def run(folder: Path, console: Console) -> bool:
    """The whole tour with its state in `folder`; whether every check held. SIGTERM cancels it, and
    then it leaves as little behind as at its end."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    t = Tour(console)
    platform = Platform(folder, devices=2, port=free_ports(1)[0], service_args=[ONE_THREAD])
    try:
        await t.step("the platform starts", platform.start())
        t.say(f"JupyterHub, scheduler and agent run at {platform.url} with 2 devices")
        await tour(platform, t, folder)
    except SingularityError as error:
        t.check(error.message, False)
    finally:
        await t.step("the platform stops", platform.stop())
    if t.passed:
        await _two_nodes(t, folder)
    console.print(t.table())
    return t.passed


async def _two_nodes(t: Tour, folder: Path) -> None:
    try:
        await demo_nodes.nodes(t, folder)
    except SingularityError as error:
        t.check(error.message, False)


class DemoApp(CommandApp):
    """Plays the tour."""

    name = "jupyter-singularity-demo"
    description = __doc__
    examples = """
        jupyter singularity demo
    """

    def execute(self) -> int:
        # Not below a private folder: servers run under uids of their own when this is root.
        folder = Path(tempfile.mkdtemp(prefix="singularity-demo-", dir="/tmp"))
        folder.chmod(0o755)
        try:
            passed = asyncio.run(run(folder, Console(width=110)))
        except asyncio.CancelledError:
            print("The tour was ended; everything it had started is stopped.", file=sys.stderr)
            return 128 + signal.SIGTERM
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print("Every check holds." if passed else "A check does not hold; see the table.")
        return 0 if passed else 1


main = DemoApp.launch
"""Sub-command of `jupyter singularity`; returns the exit code."""
