"""The bridges of this node: one for each session that is a part of a gang.

A bridge carries what the ranks of a part bring to collectives to the other parts, and connections
to the port at which all ranks meet (`singularity_proxy.elastic.bridge`). It is started before the
capsule, runs as the session's user and outlives parks. One that was killed is replaced at the same
port, or at another one where somebody else has that by now, so that the other parts find it again;
one that is told to end tells the others that this part is over, so that happens with the session
alone. What is known of it stands in the session's record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Mapping
from typing import Any

from singularity_proxy.capsule.launcher import (
    Capsule,
    CapsuleSpec,
    helper_environment,
    last_words,
    spawn,
    trim_log,
)
from singularity_proxy.capsule.process import ProcessWatch
from singularity_proxy.elastic.bridge.rendezvous import FILE
from singularity_proxy.elastic.ranks import PART
from singularity_proxy.errors import Conflict, SingularityError

from singularity_scheduler.agent.folders import own_folder
from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.processes import end_marked
from singularity_scheduler.agent.relays.relay import read_user_file, write_private
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import GangPart, SessionRecord

log = logging.getLogger("singularity.agent")

MODULE = "singularity_proxy.elastic.bridge"
KEY_VARIABLE = "SINGULARITY_BRIDGE_KEY"

READY_LIMIT_S = 30.0
END_S = 30.0
"""So long a bridge may take to give the other parts what this one brought last, and to tell them
that it is over; it ends by itself when they do not take it."""

RETRY_S = 0.5
RETRY_MAX_S = 30.0


def variables(record: SessionRecord) -> dict[str, str]:
    """What the processes of a part find in their environment, as `torchrun` wants it; nothing in a
    session that is no part. Its bridge is there."""
    part = record.part
    if part is None:
        return {}
    number, parts = str(part.number), str(part.parts)
    return {
        PART: f"{number}/{parts}",
        "NODE_RANK": number,
        "GROUP_RANK": number,
        "NNODES": parts,
        "GROUP_WORLD_SIZE": parts,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(part.master_port),
    }


class BridgeKeeper:
    """One object per agent; used by `Lifecycle`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._replacing: dict[str, asyncio.Task[Any]] = {}

    async def begin(self, live: LiveSession) -> None:
        """Start the bridge of a session that is a part, before its capsule; else nothing. The port
        at which ranks meet is chosen the first time, and is the capsule's own. Raises
        `SingularityError` when it does not start; nothing of it is left then."""
        if live.record.part is not None:
            await self._start(live, live.record.part)
            self._node.save(live)

    def adopt(self, live: LiveSession) -> None:
        """The bridge that an agent before this one started."""
        part = live.record.part
        if part is not None and part.process is not None:
            live.bridge = Capsule(part.process, lambda watch: self._exited(live, watch))

    async def set_peers(self, live: LiveSession, peers: Mapping[str, str]) -> None:
        """Where the bridges of the other parts listen (number -> "host:port"), as far as that is
        known. Idempotent. Raises `Conflict` for a session that is no part, or has ended."""
        record, part = live.record, live.record.part
        record.check_live()
        if part is None:
            raise Conflict(
                f"session {record.session} is no part of a gang, so nothing was changed",
                session=record.session,
            )
        part.peers = dict(peers)
        self._node.save(live)
        await asyncio.to_thread(self._write_peers, record, part)

    async def end(self, live: LiveSession) -> None:
        """The session has ended here: so does its bridge. It tells the other parts that this one
        is over, unless that goes on from the store: then they wait for it. Idempotent."""
        record, part = live.record, live.record.part
        session = record.session
        if part is None:
            return
        over = part.begun and not record.published and not record.elsewhere
        if (job := self._replacing.pop(session, None)) is not None:
            job.cancel()
            await asyncio.wait([job])
        if live.bridge is not None:
            await live.bridge.end(END_S if over else 0.0)
        await self._end_strays(session)
        await asyncio.to_thread(shutil.rmtree, self._node.settings.bridge_dir(session), True)

    def trim(self, record: SessionRecord) -> None:
        """Keep its log bounded."""
        trim_log(self._log(record.session), self._node.settings.log_bytes, record.uid)

    # -- inside -----------------------------------------------------------------------------------

    async def _start(self, live: LiveSession, part: GangPart) -> None:
        record, settings = live.record, self._node.settings
        session, folder = record.session, settings.bridge_dir(record.session)
        ports, log_path = os.path.join(folder, "ports.json"), self._log(session)
        await asyncio.to_thread(self._make_folder, record)
        await asyncio.to_thread(self._write_peers, record, part)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(ports)
        again: list[str] = []
        if part.port:
            again += ["--port", str(part.port)]
        if part.master_port:
            again += ["--master-port", str(part.master_port)]
        identity = spawn(
            CapsuleSpec(
                argv=[
                    *(settings.python, "-m", MODULE),
                    *("--folder", settings.session_shm(session)),
                    *("--number", str(part.number), "--parts", str(part.parts)),
                    *("--listen", settings.tunnel_ip),
                    *("--port-file", ports, "--peers", self._peers(session)),
                    *("--rendezvous", os.path.join(settings.session_dir(session), FILE)),
                    *again,
                ],
                env={**helper_environment(os.environ), KEY_VARIABLE: part.key},
                cwd="/",
                log_path=log_path,
                uid=record.uid,
                gid=record.gid,
            )
        )
        bridge = Capsule(identity, lambda watch: self._exited(live, watch))
        try:
            found = await _ports(bridge, ports)
        except BaseException:
            await bridge.end(0.0)
            raise
        if found is None:
            await bridge.end(0.0)
            why = last_words(log_path, record.uid) or "it said nothing"
            raise SingularityError(
                f"the bridge of session {session} to the other parts of its gang did not start "
                f"({why})"
            )
        part.process, (part.port, part.master_port) = bridge.identity, found
        part.address = f"{settings.tunnel_ip}:{part.port}"
        live.bridge = bridge
        if not bridge.watch.alive:
            self._exited(live, bridge.watch)

    def _exited(self, live: LiveSession, watch: ProcessWatch) -> None:
        """Somebody killed it, or it failed."""
        session = live.record.session
        if live.bridge is None or live.bridge.watch is not watch or not self._wanted(live):
            return
        if session not in self._replacing:
            job = self._node.spawn(self._replace(live), "start of another bridge")
            self._replacing[session] = job

    async def _replace(self, live: LiveSession) -> None:
        """The other parts and the ranks come back by themselves once its ports listen again."""
        record, part, delay = live.record, live.record.part, RETRY_S
        assert part is not None
        while self._wanted(live):
            try:
                await self._end_strays(record.session)
                await self._start(live, part)
            except (SingularityError, OSError) as error:
                log.warning("session %s: %s", record.session, error)
                part.port = 0  # somebody may have it by now; the other parts are told of a new one
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX_S)
            else:
                break
        self._replacing.pop(record.session, None)
        if self._wanted(live):
            log.warning("session %s: its bridge ended, another one took over", record.session)
            self._node.try_save(live)
            self._node.emit(record.session, "session.bridge", bridge=part.address)
            if live.bridge is not None and not live.bridge.watch.alive:
                self._exited(live, live.bridge.watch)

    def _wanted(self, live: LiveSession) -> bool:
        known = self._node.sessions.get(live.record.session)
        return live.record.alive and known is live and not self._node.stopping

    async def _end_strays(self, session: str) -> None:
        """End one that an agent started and was killed before it had written that down."""
        await end_marked(self._peers(session).encode(), in_environment=False)

    def _log(self, session: str) -> str:
        return os.path.join(self._node.settings.bridge_dir(session), "bridge.log")

    def _peers(self, session: str) -> str:
        return os.path.join(self._node.settings.bridge_dir(session), "peers.json")

    def _make_folder(self, record: SessionRecord) -> None:
        folder = self._node.settings.bridge_dir(record.session)
        own_folder(os.path.dirname(folder), 0o711)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            if os.geteuid() == 0:
                os.chown(folder, record.uid, record.gid)

    def _write_peers(self, record: SessionRecord, part: GangPart) -> None:
        path = self._peers(record.session)
        with contextlib.suppress(FileNotFoundError):  # then the next one is started with it
            write_private(path + ".new", part.peers, (record.uid, record.gid))
            os.replace(path + ".new", path)


async def _ports(bridge: Capsule, path: str) -> tuple[int, int] | None:
    """Where a bridge that was just started listens: (for the other parts, for its own ranks); None
    when it ended, or said nothing sensible in time."""
    deadline = time.monotonic() + READY_LIMIT_S
    while bridge.watch.alive and time.monotonic() < deadline:
        found = await asyncio.to_thread(read_user_file, path)
        if found is not None:
            numbers = (found.get("port"), found.get("master_port"))
            if all(isinstance(number, int) and 0 < number < 65536 for number in numbers):
                return numbers  # type: ignore[return-value]
            return None
        await asyncio.sleep(0.02)
    return None
