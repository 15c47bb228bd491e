"""The platform in the foreground: what ``jupyter singularity up`` and ``./dev up`` run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    SingularityError,
    Unavailable,
    Unsupported,
)

from .config import ADMIN_USER
from .hibernate import put_notebooks_away, say
from .platform import Platform

MAX_CPU_DEVICES = 64
"""More embedded devices than this are a typing mistake."""

MAX_NODES = 16
"""Nor are more nodes than this of any use on one machine."""

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
        platform = Platform(
            folder,
            devices=devices,
            port=port,
            nodes=nodes,
            netns=netns,
            tell=functools.partial(say, error=True),
        )
        logging.getLogger("tornado.application").addFilter(is_awaited)
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


def is_awaited(record: logging.LogRecord) -> bool:
    """Whether somebody waits for what a log record of tornado's tells. It logs the failure of a
    request that was given up meanwhile, which in a terminal is a traceback about nothing."""
    return not record.getMessage().startswith("Exception after Future was cancelled")


async def _run(platform: Platform) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, stop.set)
    began = time.monotonic()
    say(f"Starting JupyterHub, scheduler and node agent (state in {platform.folder.path}) ...")
    starting = asyncio.ensure_future(platform.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()  # `start` stops by itself what it has started
            await asyncio.wait({starting})
            say("Stopped before it was ready; nothing is left running.")
            return EXIT_OK
        starting.result()
        code = EXIT_FAILED
        try:
            await _greet(platform, time.monotonic() - began)
            code = await _until_stopped(platform, stopping)
        except Exception as error:  # whatever it is, notebooks are not lost for it
            _complain_of_itself(platform, error)
        stop.clear()
        code = max(code, await _stop(platform, stop))
    finally:
        stopping.cancel()
    return code


async def _stop(platform: Platform, hurry: asyncio.Event) -> int:
    """Put the notebooks into the store and end everything. While they cannot be stored because the
    scheduler cannot be brought back, all of it is left running instead, unless somebody is in a
    `hurry`."""
    try:
        await put_notebooks_away(platform, hurry)
    except Unavailable as error:
        if not hurry.is_set():
            say(
                f"The notebooks could not be stored ({error.message}), so they are left running, "
                "with the rest of the platform: start it again as it was started, and it takes "
                "them over.",
                error=True,
            )
            await platform.leave()
            return EXIT_FAILED
        say(
            f"Notebooks that are not in the store end with the platform: {error.message}",
            error=True,
        )
    began = time.monotonic()
    await platform.stop()
    say(f"Everything is stopped ({time.monotonic() - began:.1f} s).")
    return EXIT_OK


async def _until_stopped(platform: Platform, stopping: asyncio.Future[Any]) -> int:
    failed = asyncio.ensure_future(platform.failed())
    await asyncio.wait({failed, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not failed.done():
        failed.cancel()
        say("\nStopping ...")
        return EXIT_OK
    why = failed.result()
    say(
        f"{why[0].upper()}{why[1:]}; the platform stops. Why is in {platform.folder.hub_log}.",
        error=True,
    )
    return EXIT_FAILED


def _complain_of_itself(platform: Platform, error: Exception) -> None:
    with contextlib.suppress(OSError), platform.folder.hub_log.open("a") as log:
        traceback.print_exception(error, file=log)
    say(
        f"The platform stops because of an error of its own ({type(error).__name__}: {error}); "
        f"more is in {platform.folder.hub_log}.",
        error=True,
    )


async def _greet(platform: Platform, seconds: float) -> None:
    cluster = await platform.operator().cluster()
    note = await shared_uid_note(platform)
    say("\n".join([*greeting(platform, cluster, seconds), *note]))


async def shared_uid_note(platform: Platform) -> list[str]:
    """What a person must know when users are not kept apart; nothing when they are.

    Without root the node serves the first user it hears of, so nobody is asked for.
    """
    if os.geteuid() != 0:
        return ["  Without root this platform serves one user: the first who starts a server.", ""]
    identity = await platform.operator().identity(ADMIN_USER)
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
        *(
            ["  The platform of an `up` that was killed goes on, with its notebooks and runs."]
            if platform.taken_over
            else []
        ),
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
