"""What sessions printed: read while they live, kept for a while after they have ended.

Positions are bytes of everything a session ever printed, so they stay right when the beginning of a
long log is cut off. A live log lies in a folder of its user, who may have replaced it by a link: it
is opened without following one and must be a plain file of that user.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from singularity_proxy.capsule.launcher import open_log, trim_log
from singularity_proxy.errors import BadRequest, Conflict, NotFound

from singularity_scheduler.agent.node import Node

from .live import LiveSession
from .record import Life

log = logging.getLogger("singularity.agent")

MAX_BYTES = 1 << 20
"""Most bytes in one answer."""

LONGEST_CHARACTER = 4
"""Bytes of UTF-8."""

CAPSULE_LOG = "capsule.log"
_KEPT = re.compile(r"(?P<session>[0-9a-f]{12})-(?P<cut>[0-9]+)\.log")


class SessionLogs:
    """Used by the command server (`read`), the life of sessions (`keep`) and the housekeeping of
    the agent (`trim`)."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._folder = Path(node.settings.state_dir, "logs")
        for partial in self._folder.glob("*/*.new"):  # an agent was killed in the middle of one
            partial.unlink(missing_ok=True)

    def read(self, session: str, offset: int, limit: int) -> dict[str, Any]:
        """``{"text", "offset", "next_offset", "size"}``: at most `limit` bytes from `offset` on.

        Raises `NotFound` when nothing is kept, `Conflict` for a session whose process is a
        person's own, because its output went to that person's terminal.
        """
        if offset < 0 or not 0 < limit <= MAX_BYTES:
            raise BadRequest(f"a log is read from 0 on, at most {MAX_BYTES} bytes at a time")
        live = self._node.sessions.get(session)
        if live is not None and live.record.mode == "joined":
            raise Conflict(
                f"session {session} is a command in somebody's terminal: its output is there",
                session=session,
            )
        if live is not None and live.record.life is Life.STARTING:
            return {"text": "", "offset": 0, "next_offset": 0, "size": 0}
        with self._opened(session, live) as (fd, cut):
            size = cut + os.fstat(fd).st_size
            start = min(max(offset, cut), size)
            data = os.pread(fd, max(limit, LONGEST_CHARACTER), start - cut)
            if live is not None or start + len(data) < size:  # more will follow
                data = _whole_characters(data)
        return {
            "text": data.decode("utf-8", "replace"),
            "offset": start,
            "next_offset": start + len(data),
            "size": size,
        }

    def trim(self, live: LiveSession) -> None:
        """Keep the log of a live session bounded; called every few seconds."""
        cut = trim_log(self._path(live), self._node.settings.log_bytes, live.record.uid)
        if cut:
            live.record.log_cut += cut
            self._node.try_save(live)

    def keep(self, live: LiveSession) -> None:
        """Copy the end of the log of a session that ends to where it outlives its folder; the
        user's oldest kept ones make room. Without space on the disk the log is lost and the end
        goes on."""
        record, settings = live.record, self._node.settings
        if record.mode == "joined" or settings.keep_logs < 1:
            return
        folder = self._folder / str(record.uid)
        partial = folder / f"{record.session}.new"
        try:
            with self._opened_live(live) as fd:
                size = os.fstat(fd).st_size
                skipped = max(0, size - settings.log_bytes)  # its user may have made it huge
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open(partial, "wb", opener=_private) as file:
                    for at in range(skipped, size, MAX_BYTES):
                        file.write(os.pread(fd, min(MAX_BYTES, size - at), at))
                os.replace(partial, folder / f"{record.session}-{record.log_cut + skipped}.log")
                self._make_room(folder)
        except (OSError, NotFound):
            partial.unlink(missing_ok=True)

    def go_on(self, live: LiveSession) -> None:
        """What the session has printed here before comes first in its log: called when another
        attempt of its run begins here, or when it went back to a checkpoint, before it goes on.
        Positions stay right for who follows the log. Without space the log begins anew."""
        record = live.record
        for path, cut in _kept_of(record.session, self._folder / str(record.uid)):
            try:
                self._put_before(live, path, cut)
            except (OSError, Conflict) as error:
                log.warning("session %s: its log begins anew: %s", record.session, error)
            path.unlink(missing_ok=True)

    def _put_before(self, live: LiveSession, path: Path, cut: int) -> None:
        record = live.record
        fd = open_log(self._path(live), record.uid, record.gid)
        try:
            if cut + path.stat().st_size <= record.log_cut + os.fstat(fd).st_size:
                return  # it has all that already
            os.ftruncate(fd, 0)  # its writers append
            with open(path, "rb") as kept:
                while data := kept.read(MAX_BYTES):
                    os.write(fd, data)
            record.log_cut = cut
        finally:
            os.close(fd)

    def _make_room(self, folder: Path) -> None:
        kept = [p for p in folder.iterdir() if _KEPT.fullmatch(p.name)]
        kept.sort(key=lambda p: p.stat().st_mtime)
        for path in kept[: max(0, len(kept) - self._node.settings.keep_logs)]:
            path.unlink(missing_ok=True)

    def _path(self, live: LiveSession) -> str:
        folder = self._node.settings.session_dir(live.record.session)
        return os.path.join(folder, CAPSULE_LOG)

    @contextlib.contextmanager
    def _opened(self, session: str, live: LiveSession | None) -> Iterator[tuple[int, int]]:
        """(descriptor, bytes cut off before it) of the live log, else of the kept one."""
        with contextlib.ExitStack() as stack:
            found: tuple[int, int] | None = None
            if live is not None:
                with contextlib.suppress(NotFound):
                    found = stack.enter_context(self._opened_live(live)), live.record.log_cut
            if found is None:
                found = stack.enter_context(self._opened_kept(session))
            yield found

    @contextlib.contextmanager
    def _opened_kept(self, session: str) -> Iterator[tuple[int, int]]:
        folders = self._folder.iterdir() if self._folder.is_dir() else ()
        for path, cut in (found for folder in folders for found in _kept_of(session, folder)):
            with open(path, "rb") as file:
                yield file.fileno(), cut
            return
        raise NotFound(f"the log of session {session} is not kept any more", session=session)

    @contextlib.contextmanager
    def _opened_live(self, live: LiveSession) -> Iterator[int]:
        try:
            fd = os.open(
                self._path(live), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            )
        except OSError:
            raise NotFound(f"session {live.record.session} has no log") from None
        try:
            info = os.fstat(fd)
            plain = stat.S_ISREG(info.st_mode) and info.st_nlink == 1
            if not plain or info.st_uid != live.record.uid:
                raise NotFound(f"the log of session {live.record.session} was replaced")
            yield fd
        finally:
            os.close(fd)


def _kept_of(session: str, folder: Path) -> list[tuple[Path, int]]:
    """List the logs of `session` that are kept in `folder`, and how much was cut off each. Names
    are compared one by one: `Path.glob` keeps the pattern of each session as long as the process
    lives."""
    names = os.listdir(folder) if folder.is_dir() else []
    matches = [match for name in names if (match := _KEPT.fullmatch(name))]
    return [(folder / m.string, int(m["cut"])) for m in matches if m["session"] == session]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _whole_characters(data: bytes) -> bytes:
    """`data` without the beginning of a character that the next read completes."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return data
        if byte >= 0xC0:  # the first byte of a character of this many bytes
            length = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return data if back >= length else data[:-back]
    return data
