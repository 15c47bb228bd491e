"""The IPython histories of the node's sessions, merged into those that their users share.

A kernel writes to a file of its own in its session's folder. Now and then, and before that folder
is removed, a program with the user's rights puts what is new into the user's shared file: outside
of the capsule, so that no suspend stops it in the middle.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from singularity_proxy.capsule.files import histories

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.sessions.live import LiveSession

log = logging.getLogger("singularity.agent")

EVERY_S = 20.0
"""Between two merges of one session that goes on."""

LIMIT_S = 30.0
"""So long one may take, with a home that does not answer; the end of a session waits for it."""


class HistoryKeeper:
    """One object per agent."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._seen: WeakKeyDictionary[LiveSession, tuple[float, tuple[int, int]]] = (
            WeakKeyDictionary()
        )
        """When a session was merged last, and (time, size) of its file then."""
        self._locks: WeakKeyDictionary[LiveSession, asyncio.Lock] = WeakKeyDictionary()

    def look(self, live: LiveSession) -> None:
        """Begin a merge when the kernel has written something since; called every second or so."""
        at, stamp = self._seen.get(live, (0.0, (0, 0)))
        now = time.monotonic()
        if now - at < EVERY_S:
            return
        found = self._stamp(live)
        if found is not None and found != stamp:
            self._seen[live] = (now, stamp)
            self._node.spawn(self.merge(live), "merge of a history")

    async def merge(self, live: LiveSession) -> None:
        """Put what is new in the session's history into its user's. Raises nothing: what could not
        be merged is, the next time."""
        async with self._locks.setdefault(live, asyncio.Lock()):
            stamp = self._stamp(live)
            if stamp is None or stamp == self._seen.get(live, (0.0, (0, 0)))[1]:
                return
            why = await asyncio.to_thread(self._run, live)
            if why:
                log.warning(
                    "session %s: its history could not be merged (%s)", live.record.session, why
                )
            else:
                self._seen[live] = (time.monotonic(), stamp)

    def _path(self, live: LiveSession) -> str:
        return os.path.join(self._node.settings.session_dir(live.record.session), histories.FILE)

    def _stamp(self, live: LiveSession) -> tuple[int, int] | None:
        try:
            info = os.lstat(self._path(live))
        except OSError:
            return None
        return info.st_mtime_ns, info.st_size

    def _run(self, live: LiveSession) -> str:
        """ "" or why it failed."""
        record = live.record
        asked = {
            "path": self._path(live),
            "session": record.session,
            "incarnation": record.incarnation,
        }
        drop: dict[str, Any] = {}
        if record.uid != os.geteuid():
            drop = {"user": record.uid, "group": record.gid, "extra_groups": []}
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-B", os.fspath(Path(histories.__file__))],
                input=json.dumps(asked),
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
                cwd="/",
                env={},
                **drop,
            )
            return str(json.loads(done.stdout).get("error", ""))
        except subprocess.TimeoutExpired:
            return f"its home did not answer within {LIMIT_S:g} s"
        except (OSError, ValueError) as error:
            return str(error)
