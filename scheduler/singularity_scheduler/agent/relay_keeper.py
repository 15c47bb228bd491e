"""The relays of this node: started with a session, replaced when they end, and kept while their
session is in the store or on another node.

Jupyter's clients are connected to a relay, so it never moves. What is kept stands in the ledger as
a document of its own, and another agent takes it over like a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import dataclass
from typing import Any

from singularity_proxy.capsule.launcher import trim_log
from singularity_proxy.errors import NotFound, SingularityError, Unavailable

from .live import LiveSession
from .node import Node
from .relays import Relay, make_relay_folder, remove_relay_folder, start_relay, write_tunnel
from .sessions import Life, SessionRecord

log = logging.getLogger("singularity.agent")

RELAY_RETRY_S = 1.0
RELAY_RETRY_MAX_S = 30.0

REPLACED_S = 10.0
"""So long who needs a relay waits for the one that takes the place of one that ended."""


@dataclass
class Kept:
    """A relay whose session is elsewhere; `record` is what the session was when it left."""

    record: SessionRecord
    relay: Relay | None


class RelayKeeper:
    """One object per agent; used by `Lifecycle` and by the commands about whole sessions."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.kept: dict[str, Kept] = {}

    # -- of a session that is here ----------------------------------------------------------------

    async def begin(self, live: LiveSession, connection: dict[str, Any]) -> None:
        """Make the relay's folder; `run` follows once the capsule is started."""
        make_relay_folder(self._node.settings, live.record, connection)

    async def run(self, holder: LiveSession | Kept) -> None:
        """Start the relay, and tell the session's shim where it is."""
        record = holder.record
        session = record.session
        holder.relay = await start_relay(
            self._node.settings,
            record,
            lambda _: self._exited(session),
            lambda name, data: self._event(session, name, data),
        )
        record.relay = holder.relay.identity
        if isinstance(holder, LiveSession):
            self._write_tunnel(record, await holder.relay.tunnel())
            self._node.save(holder)
        else:
            self._save(holder)

    def adopt(self, holder: LiveSession | Kept) -> None:
        """The relay that an agent before this one started."""
        record = holder.record
        if record.relay is not None:
            session = record.session
            holder.relay = Relay(
                self._node.settings,
                record,
                record.relay,
                lambda _: self._exited(session),
                lambda name, data: self._event(session, name, data),
            )

    async def away(self, live: LiveSession, away: bool) -> None:
        """The kernel does not answer now, or does again: until then the relay does, as far as it
        can. Best effort: one that is being replaced knows what it was told last."""
        if live.relay is not None:
            with contextlib.suppress(SingularityError):
                await live.relay.set_away(away)

    async def positions(self, live: LiveSession) -> dict[str, Any] | None:
        """Where the connection stands, for a checkpoint; None without one."""
        if live.relay is None:
            return None
        with contextlib.suppress(SingularityError):
            return await live.relay.positions()
        return None

    # -- of a session that leaves or comes --------------------------------------------------------

    def keep(self, live: LiveSession) -> None:
        """The session leaves this node; its relay stays."""
        if live.relay is not None:
            kept = Kept(live.record, live.relay)
            self.kept[live.record.session] = kept
            live.relay = None
            self._save(kept)

    async def wait_for(self, live: LiveSession) -> None:
        """What is here of the session ends, and it goes on from the store: its relay stays, and
        answers for it unless the session has come back already."""
        relay = live.relay
        self.keep(live)
        if relay is not None and not relay.capsule.watch.alive:  # nobody needed it until now
            self._exited(live.record.session)
        elif relay is not None:
            with contextlib.suppress(SingularityError):
                status = await relay.status()
                if int(status["tunnel"]["incarnation"]) <= live.record.incarnation:
                    await relay.set_away(True)

    async def connection(
        self, session: str, incarnation: int | None = None, undo: bool = False
    ) -> dict[str, Any]:
        """What another node needs to bring the kernel back to the relay here: `connection` of
        `session.connection`. It holds keys. `incarnation`: begin that one, after a rollback, with
        `undo` without asking again what was asked since. Raises `NotFound` when there is no
        relay."""
        holder = self.kept.get(session) or self._node.sessions.get(session)
        if holder is None or holder.relay is None:
            raise NotFound(f"this node has no relay of session '{session}'", session=session)
        relay = await self._answering(holder)
        if incarnation is not None:
            await self._incarnate(relay, incarnation, undo)
        return {"tunnel": await relay.tunnel()}

    async def connect(
        self, live: LiveSession, connection: dict[str, Any] | None, undo: bool
    ) -> list[str]:
        """Before a restored session goes on: its kernel finds its relay, here or elsewhere. `undo`:
        what clients asked since the checkpoint is not asked again. Returns what is lost of the
        connection, for the loss report."""
        record = live.record
        kept = self.kept.get(record.session)
        if kept is not None and kept.relay is not None:
            await self._incarnate(await self._answering(kept), record.incarnation, undo)
            self._write_tunnel(record, await kept.relay.tunnel())
            live.relay, kept.relay = kept.relay, None
            record.relay, record.owner = live.relay.identity, kept.record.owner
            return []
        if connection and isinstance(connection.get("tunnel"), dict):
            self._write_tunnel(record, connection["tunnel"])
            return []
        if connection and "shell_port" in connection:
            await self.begin(live, connection)
            await self.run(live)
            return ["what Jupyter's clients had sent and not seen answered"]
        return ["its connection to Jupyter"] if record.connected else []

    def taken(self, session: str) -> None:
        """The session whose relay was kept lives here again."""
        if self.kept.pop(session, None) is not None:
            with contextlib.suppress(SingularityError):
                self._node.ledger.drop("relay", session)

    def give_back(self, live: LiveSession) -> None:
        """It could not be resumed: the relay goes on waiting for it."""
        kept = self.kept.get(live.record.session)
        if kept is not None and live.relay is not None:
            kept.relay, live.relay = live.relay, None

    async def _answering(self, holder: LiveSession | Kept) -> Relay:
        """Its relay, which may just be replaced; raises `Unavailable` when that takes too long."""
        deadline = time.monotonic() + REPLACED_S
        while True:
            assert holder.relay is not None
            try:
                await holder.relay.status()
                return holder.relay
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def _incarnate(self, relay: Relay, number: int, undo: bool = False) -> None:
        status = await relay.status()
        if number > int(status["tunnel"]["incarnation"]):
            await relay.begin(number, undo=undo)

    async def end(self, session: str) -> SessionRecord | None:
        """The session has ended, wherever it was: end its relay, if it was kept here. Returns what
        the session was."""
        kept = self.kept.pop(session, None)
        if kept is None:
            return None
        if kept.relay is not None:
            await kept.relay.end(1.0)
        await asyncio.to_thread(remove_relay_folder, self._node.settings, session)
        with contextlib.suppress(SingularityError):
            self._node.ledger.drop("relay", session)
        return kept.record

    async def end_all(self) -> None:
        """The node is being stopped."""
        await asyncio.gather(*(self.end(session) for session in list(self.kept)))

    async def take_over(self) -> None:
        """Adopt the relays that an agent before this one had kept; called once at start."""
        for session, body in list(self._node.ledger.all("relay")):
            if session in self.kept:  # by a session that was taken over and has just left
                continue
            live = self._node.sessions.get(session)
            if live is not None and live.relay is not None:  # it had just come back
                self._node.ledger.drop("relay", session)
                continue
            kept = Kept(SessionRecord.from_json(body), None)
            self.kept[session] = kept
            self.adopt(kept)
            await self.listen(kept)

    async def listen(self, holder: LiveSession | Kept) -> None:
        """Connect to an adopted relay, so that it can tell what it hears."""
        if holder.relay is not None:
            with contextlib.suppress(Unavailable):  # it is gone: then another one is started
                await holder.relay.status()

    def trim(self, session: str) -> None:
        folder = self._node.settings.relay_dir(session)
        trim_log(os.path.join(folder, "relay.log"), self._node.settings.log_bytes)

    # -- inside -----------------------------------------------------------------------------------

    def _save(self, kept: Kept) -> None:
        with contextlib.suppress(SingularityError):
            self._node.ledger.put("relay", kept.record.session, kept.record.to_json())

    def _write_tunnel(self, record: SessionRecord, tunnel: dict[str, Any]) -> None:
        write_tunnel(self._node.settings, record, tunnel)
        record.tunnel = str(tunnel["address"]).removeprefix("tcp://")

    def _holder(self, session: str) -> LiveSession | Kept | None:
        if self._node.stopping:
            return None
        kept = self.kept.get(session)
        if kept is not None and kept.relay is not None:
            return kept
        live = self._node.sessions.get(session)
        return live if live is not None and live.record.life is Life.LIVE else None

    def _event(self, session: str, name: str, data: dict[str, Any]) -> None:
        """A relay said something by itself."""
        if name == "wanted":
            self._node.emit(session, "session.wanted", **data)
        elif data["requests_again"] or data["outputs_rolled_back"] or data["requests_lost"]:
            log.warning("session %s: %s", session, data)

    def _exited(self, session: str) -> None:
        if self._holder(session) is not None:
            self._node.spawn(self._replace(session), "start of another relay")

    async def _replace(self, session: str) -> None:
        """Clients come back by themselves once the ports listen again."""
        delay = RELAY_RETRY_S
        while (holder := self._holder(session)) is not None:
            try:
                await self.run(holder)
                return
            except SingularityError as error:
                log.warning("session %s: %s", session, error.message)
            await asyncio.sleep(delay)
            delay = min(delay * 2, RELAY_RETRY_MAX_S)
