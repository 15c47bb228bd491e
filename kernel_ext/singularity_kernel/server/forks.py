"""Forks of a server's notebooks: each is listed with a notebook of its own, a copy of the first.

A fork is asked for in JupyterLab, on the command line or in a cell; whoever asked, the server hears
of it (`singularity_labext`) and finds it here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from jupyter_core.utils import ensure_async
from tornado.web import HTTPError

from .notes import Notes

Json = dict[str, Any]

log = logging.getLogger("singularity.server")

SUFFIX = ".ipynb"

STEM_BYTES = 200
"""A file's name may have 255, and a number may be added."""


STOP_S = 5.0
"""So long a server that stops waits for the fork whose notebook it just copies and opens."""


class Kernels(Protocol):
    """What is needed of the kernel manager."""

    def find_listed(self, session: str) -> str | None: ...

    async def look_up(self, wanted: Callable[[Json], bool]) -> Json | None: ...

    async def list_session(self, item: Json) -> bool: ...


class Forks:
    """Finds forks, one after the other; a fork that was found has its notebook, or never gets
    one."""

    def __init__(self, notes: Notes, kernels: Kernels, server: Any) -> None:
        """`server`: Jupyter's application (its managers of files and notebooks)."""
        self._notes, self._kernels, self._server = notes, kernels, server
        self._one = asyncio.Lock()
        self._stopped = False

    async def find(self, session: str) -> Json | None:
        """List a fork; returns its `kernel_id` and its `notebook` (a path; "": it has none), or
        None when it is not of this server, or the server stops: the next one finds it. Raises what
        the scheduler refuses."""
        kernel_id = self._kernels.find_listed(session)
        notebook = self._notes.of(kernel_id).get("notebook") if kernel_id else None
        if notebook is not None:
            return {"kernel_id": kernel_id, "notebook": notebook}
        item = await self._kernels.look_up(lambda item: item["session"]["id"] == session)
        if item is None:
            return None
        # Whoever asked may leave: a copy that nobody notes would be made a second time.
        return await asyncio.shield(self._list(item))

    async def _list(self, item: Json) -> Json | None:
        async with self._one:
            if self._stopped or not await self._kernels.list_session(item):
                return None
            kernel_id = str(item["kernel_id"])
            notebook = self._notes.of(kernel_id).get("notebook")
            if notebook is None:
                notebook = await self._begin(kernel_id, item["session"])
            return {"kernel_id": kernel_id, "notebook": notebook}

    async def stop(self) -> None:
        """List no fork any more, and wait for the one that is just listed, at most `STOP_S`; called
        when the server stops, before it lets its kernels go."""
        self._stopped = True
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            async with asyncio.timeout(STOP_S), self._one:
                pass

    async def _begin(self, kernel_id: str, session: Json) -> str:
        """Copy the notebook and open it on the kernel; the path of the copy."""
        source = str(session["forked_from"])
        of = self._kernels.find_listed(source) or self._notes.kernel_of(source) or ""
        first = self._notes.of(of).get("notebook")
        copy = ""
        if first:
            done = "copied"
            try:
                copy, path = await self._copy(first, str(session["name"]))
                done = f"opened from its copy {copy}"
                await self._open(kernel_id, copy, path)
            except (OSError, HTTPError, ValueError, sqlite3.Error) as error:
                said = getattr(error, "log_message", None) or error
                log.warning(
                    "Singularity: session %s, a fork, has no open notebook, because %s could not "
                    "be %s (%s); its kernel is listed",
                    session["id"],
                    first,
                    done,
                    said,
                )
                copy = ""
        self._notes.note(kernel_id, notebook=copy)
        return copy

    async def _copy(self, first: str, name: str) -> tuple[str, str]:
        """Copy a notebook beside itself; where the copy is, and that below the server's root."""
        contents = self._server.contents_manager
        root = getattr(contents, "root_dir", "")
        there = _below(first, root)
        folder, _, last = there.rpartition("/")
        model = await ensure_async(contents.get(there, content=True, type="notebook"))
        wanted = name_of_copy(name, last)
        file = await ensure_async(contents.increment_filename(wanted, folder, insert="-"))
        path = f"{folder}/{file}" if folder else file
        body = {"type": "notebook", "format": "json", "content": model["content"]}
        await ensure_async(contents.save(body, path))
        return os.path.join(root, path), path

    async def _open(self, kernel_id: str, copy: str, path: str) -> None:
        """Open a copy on the kernel of a fork, as a page does."""
        notebooks = self._server.session_manager
        notebooks.kernel_manager.update_env(kernel_id=kernel_id, env={"JPY_SESSION_NAME": copy})
        name = path.rpartition("/")[2]
        await ensure_async(
            notebooks.create_session(path=path, name=name, type="notebook", kernel_id=kernel_id)
        )


def _below(notebook: str, root: str) -> str:
    """The path of a notebook below the root of a server, with slashes; raises ValueError when it is
    elsewhere, or the server keeps notebooks elsewhere than in files."""
    if not root:
        raise ValueError("the server keeps notebooks elsewhere than in files")
    return Path(notebook).resolve().relative_to(Path(root).resolve()).as_posix()


def name_of_copy(fork: str, first: str) -> str:
    """The file of a fork called `fork`, whose first notebook is the file `first`. Pure."""
    stem = fork.removesuffix(SUFFIX)
    if stem in ("", first.removesuffix(SUFFIX)):
        stem = f"{first.removesuffix(SUFFIX)}-fork"
    stem = "".join("-" if c == "/" or not c.isprintable() else c for c in stem)
    stem = stem.encode()[:STEM_BYTES].decode(errors="ignore")
    return (stem.strip().lstrip(".") or "fork") + SUFFIX
