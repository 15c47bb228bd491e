"""The platform in the foreground: what ``jupyter singularity up`` and ``./dev up`` run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from singularity_proxy.errors import BadRequest, Conflict, SingularityError, Unsupported

from .config import ADMIN_USER
from .platform import Platform

MAX_CPU_DEVICES = 64
"""More embedded devices than this are a typing mistake."""

MAX_NODES = 16
"""Nor are more nodes than this of any use on one machine."""

HIBERNATE_S = 60.0
"""Longest time that the end of the platform waits for notebooks on their way to the store."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2
"""The request cannot be served (port taken, state folder in use, bad number); nothing was done."""


def default_state_dir() -> Path:
    """Where the state goes when nobody says: a folder that servers under other uids can pass when
    this is root, else one in the user's data folder."""
    if os.geteuid() == 0:
        return Path("/var/lib/jupyter-singularity")
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local/share")
    return Path(data) / "jupyter-singularity"


def run(
    state_dir: Path | None,
    *,
    port: int | None,
    devices: int,
    nodes: int = 1,
    netns: bool = False,
) -> int:
    """Start the platform, print how to use it, wait for Ctrl-C or SIGTERM, stop everything.

    Returns the exit code; every refusal is one sentence on standard error.
    """
    try:
        if not 1 <= devices <= MAX_CPU_DEVICES:
            raise BadRequest(
                f"--devices takes a number from 1 to {MAX_CPU_DEVICES}; nothing was started."
            )
        if not 1 <= nodes <= MAX_NODES:
            raise BadRequest(f"--nodes takes a number from 1 to {MAX_NODES}; nothing was started.")
        folder = default_state_dir() if state_dir is None else state_dir
        platform = Platform(folder, devices=devices, port=port, nodes=nodes, netns=netns)
        return asyncio.run(_run(platform))
    except SingularityError as error:
        print(error.message, file=sys.stderr)
        refused = isinstance(error, (BadRequest, Conflict, Unsupported))
        return EXIT_REFUSED if refused else EXIT_FAILED
    except OSError as error:
        print(
            f"The platform could not be started: {error}; nothing is left running.", file=sys.stderr
        )
        return EXIT_FAILED


async def _run(platform: Platform) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, stop.set)
    began = time.monotonic()
    print(f"Starting JupyterHub, scheduler and node agent (state in {platform.folder.path}) ...")
    starting = asyncio.ensure_future(platform.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()  # `start` stops by itself what it has started
            await asyncio.wait({starting})
            print("Stopped before it was ready; nothing is left running.")
            return EXIT_OK
        starting.result()
        seconds = time.monotonic() - began
        cluster = await platform.service().cluster()
        note = await shared_uid_note(platform)
        print("\n".join([*greeting(platform, cluster, seconds), *note]), flush=True)
        code = await _until_stopped(platform, stop)
        if code == EXIT_OK:
            stop.clear()
            await put_notebooks_away(platform, stop)
    finally:
        stopping.cancel()
        began = time.monotonic()
        await platform.stop()
    print(f"Everything is stopped ({time.monotonic() - began:.1f} s).")
    return code


async def _until_stopped(platform: Platform, stop: asyncio.Event) -> int:
    while not stop.is_set():
        ended = platform.hub_exit_code()
        if ended is not None:
            print(
                f"JupyterHub ended by itself with exit code {ended}; stopping the rest. Why is in "
                f"{platform.folder.hub_log}.",
                file=sys.stderr,
            )
            return EXIT_FAILED
        await _wait(stop, 0.5)
    print("\nStopping ...", flush=True)
    return EXIT_OK


async def put_notebooks_away(platform: Platform, hurry: asyncio.Event) -> None:
    """Suspend all notebooks, which wait in the store for the next start; `hurry`, or `HIBERNATE_S`,
    ends the waiting. What could not be suspended ends with the platform, and that is said."""
    try:
        client = platform.service()
        live = [
            session
            for session in await client.sessions("active")
            if session["kind"] == "interactive" and session["process_state"] != "suspended"
        ]
        if not live:
            return
        print(
            f"Suspending {_notebooks(len(live))}; Ctrl-C again stops without waiting ...",
            flush=True,
        )
        users = {session["user"] for session in live}
        asked = (client.hibernate(user, wait_s=HIBERNATE_S) for user in users)
        work = asyncio.gather(*asked, return_exceptions=True)
        hurried = asyncio.ensure_future(hurry.wait())
        hurried.add_done_callback(lambda _: work.cancel())
        with contextlib.suppress(asyncio.CancelledError):
            await work
        hurried.cancel()
        ids = {session["id"] for session in live}
        found = [s for s in await client.sessions("active") if s["id"] in ids]
    except SingularityError as error:
        print(f"Notebooks end with the platform: {error.message}", file=sys.stderr)
        return
    stored = [s for s in found if s["process_state"] == "suspended"]
    if stored:
        verb = "waits" if len(stored) == 1 else "wait"
        print(f"{_notebooks(len(stored))} {verb} in the store for the next start.", flush=True)
    for session in found:
        if session not in stored:
            print(
                f"Session {session['id']} of {session['user']} ends with the platform: "
                f"{session['reason']}",
                file=sys.stderr,
            )


def _notebooks(count: int) -> str:
    return "1 notebook" if count == 1 else f"{count} notebooks"


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except (TimeoutError, asyncio.TimeoutError):
        return


async def shared_uid_note(platform: Platform) -> list[str]:
    """What a person must know when users are not kept apart; nothing when they are.

    Without root the node serves the first user it hears of, so nobody is asked for.
    """
    if os.geteuid() != 0:
        return ["  Without root this platform serves one user: the first who starts a server.", ""]
    identity = await platform.service().identity(ADMIN_USER)
    return [] if identity["mapped"] else [f"  Note: {identity['sentence']}", ""]


def greeting(platform: Platform, cluster: dict[str, Any], seconds: float) -> list[str]:
    """What a person reads when the platform is ready."""
    folder = platform.folder.path
    several = len(cluster["nodes"]) > 1
    devices = ", ".join(
        f"{device['node']}/{device['id']}" if several else str(device["id"])
        for device in sorted(cluster["devices"], key=lambda d: (d["node"], d["id"]))
    )
    apart = [
        "  The nodes have a network of their own: notebooks reach this machine and each other, and "
        "nothing beyond.",
    ]
    return [
        "",
        f"  {platform.url}    ready in {seconds:.1f} s; devices: {devices}",
        "",
        f"  Log in with any user name and the password  {platform.password}",
        f"  (it is kept in {folder / 'password'}; the user '{ADMIN_USER}' has the one in "
        f"{folder / 'admin_password'}).",
        f"  Dashboard: {platform.url}services/singularity/ (all of the platform for that user, own",
        "  sessions for others).",
        *(apart if platform.settings.netns else []),
        f"  Log: {platform.folder.hub_log}.  Ctrl-C stops everything.",
        "",
    ]
