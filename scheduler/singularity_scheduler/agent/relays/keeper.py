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
from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.errors import Conflict, NotFound, SingularityError, Unavailable

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Life, SessionRecord
from singularity_scheduler.agent.store.resumes import ResumeRequest

from .client_places import other_place, place_clients
from .far_relays import FarRelay
from .new_relays import clients_of_image, give_kernel_key, note_clients
from .relay import (
    Relay,
    has_client_file,
    make_relay_folder,
    remove_relay_folder,
    start_relay,
    write_tunnel,
)

log = logging.getLogger("singularity.agent")

RELAY_RETRY_S = 1.0
RELAY_RETRY_MAX_S = 30.0

REPLACED_S = 10.0
"""So long who needs a relay waits for the one that takes the place of one that ended."""

PORT_TRIES = 4

UNANSWERED = "what Jupyter's clients had sent and not seen answered"
OTHER_PORTS = "the ports of its kernel: clients have to connect to the new ones"

JOIN_S = 10.0
"""How long after a rollback the session's processes may take to say how far they had come."""


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
        self._replacing: dict[str, asyncio.Task[Any]] = {}
        """Starts of relays that take the place of others."""

    # -- of a session that is here ----------------------------------------------------------------

    async def begin(self, live: LiveSession, connection: dict[str, Any]) -> None:
        """Make the relay's folder; `run` follows once the capsule is started."""
        make_relay_folder(self._node.settings, live.record, connection)
        note_clients(self._node.settings, live.record, connection)

    async def run(self, holder: LiveSession | Kept, *, absent: bool = False) -> None:
        """Start the relay, and tell the session's shim where it is. `absent`: see `start_relay`."""
        record = holder.record
        session = record.session

        def note(process: ProcessIdentity) -> None:
            record.relay = process
            if isinstance(holder, LiveSession):
                self._node.try_save(holder)
            else:
                self.save(holder)

        holder.relay = await start_relay(
            self._node.settings,
            record,
            lambda _: self._exited(session),
            lambda name, data: self._event(session, name, data),
            note,
            absent=absent,
        )
        if isinstance(holder, LiveSession):
            self._write_tunnel(record, await holder.relay.tunnel())
            self._node.save(holder)
        else:
            self.save(holder)

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

    def line(self, live: LiveSession) -> Relay | FarRelay | None:
        """To the relay of a session that is here; the relay may be on another node."""
        if live.relay is None and live.record.connected and live.record.tunnel:
            return FarRelay(self._node.settings, live.record)
        return live.relay

    async def away(self, live: LiveSession, away: bool) -> None:
        """The kernel does not answer now, or does again: until then the relay does, as far as it
        can. Best effort: one that is being replaced knows what it was told last."""
        line = self.line(live)
        if line is not None and (away or live.told_away or live.relay is line):
            with contextlib.suppress(SingularityError):
                await line.set_away(away)
            live.told_away = away

    async def positions(self, live: LiveSession) -> dict[str, Any] | None:
        """Where the connection stands, for a checkpoint; None without one."""
        line = self.line(live)
        if line is not None:
            with contextlib.suppress(SingularityError):
                return await line.positions()
        return None

    async def retain(self, live: LiveSession) -> None:
        """After a checkpoint: remove those that the retention policy does not keep, and let the
        relay forget what only they needed. Best effort."""
        record = live.record
        await self._node.stores.tidy(record.user, record.session, record.epoch)
        line = self.line(live)
        if line is None:
            return
        with contextlib.suppress(SingularityError):
            found = await self._node.stores.positions(record.user, record.session, live.positions)
            kept = [one for one in found.values() if one is not None]
            # Nothing is forgotten while one is under way, or when one does not say what it needs.
            if live.savings or not kept or len(kept) < len(found) or found == live.positions:
                return
            await line.forget(kept)
            live.positions = found

    async def tell_undone(self, live: LiveSession, loss: dict[str, Any]) -> None:
        """After a rollback, once it runs: write into its loss report what that means for Jupyter's
        clients. Only its processes know how far they had come, and say so when they are back."""
        line = self.line(live)
        if line is None or not loss["rolled_back"]:
            return
        undone_by_it = await self._undone(live, line)
        if undone_by_it is None:
            loss["lost"].append(
                f"an unknown number of outputs, because its relay did not say how many within "
                f"{JOIN_S:g} s"
            )
            return
        again, undone, forgotten = undone_by_it
        loss |= {
            "requests_again": again,
            "outputs_rolled_back": undone,
            "requests_lost": forgotten,
        }
        if again:
            loss["back"].append(f"{_count(again, 'request')} of its clients, carried out again")
        if undone:
            loss["lost"].append(f"{_count(undone, 'output')} that came after it")
        if forgotten:
            loss["lost"].append(f"{_count(forgotten, 'request')} that the relay no longer had")

    async def _undone(
        self, live: LiveSession, line: Relay | FarRelay
    ) -> tuple[int, int, int] | None:
        """Requests again, outputs rolled back, requests lost; None when the relay, which is a
        process of the user, does not say so."""
        deadline = time.monotonic() + JOIN_S
        while time.monotonic() < deadline and live.record.alive:
            await asyncio.sleep(0.02)
            with contextlib.suppress(
                SingularityError, KeyError, TypeError, ValueError, OverflowError
            ):
                told = await line.standing()
                if told["joined"]:
                    if told["incarnation"] != live.record.incarnation:
                        return None
                    return (
                        int(told["requests_again"]),
                        int(told["outputs_rolled_back"]),
                        int(told["requests_lost"]),
                    )
        return None

    # -- of a session that leaves or comes --------------------------------------------------------

    def keep(self, live: LiveSession) -> None:
        """The session leaves this node; its relay stays."""
        if live.relay is not None:
            kept = Kept(live.record, live.relay)
            self.kept[live.record.session] = kept
            live.relay = None
            self.save(kept)
            self.replace_ended(live.record.session, kept)

    async def wait_for(self, live: LiveSession) -> None:
        """What is here of the session ends, and it goes on from the store: its relay stays, and
        answers for it unless the session has come back already."""
        relay = live.relay
        self.keep(live)
        if relay is None:  # on another node; its key is void if it goes on elsewhere already
            await self.away(live, True)
        elif relay.capsule.watch.alive:
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
        holder = await self._usable(session) or self._node.sessions.get(session)
        if holder is None or holder.relay is None:
            raise NotFound(f"this node has no relay of session '{session}'", session=session)
        relay = await self._answering(holder)
        if incarnation is not None:
            await self._incarnate(relay, incarnation, undo)
        return {"tunnel": await relay.tunnel()}

    async def connect(self, live: LiveSession, request: ResumeRequest) -> list[str]:
        """Before a restored session goes on: its kernel finds its relay, here or elsewhere, or gets
        another one. Returns what is lost of the connection, for the loss report."""
        record, connection, undo = live.record, request.connection, request.undo
        if (before := self.kept.get(record.session)) is not None:
            record.owner = before.record.owner
        kept = await self._usable(record.session)
        far = connection.get("tunnel") if connection else None
        if isinstance(far, dict) and kept is not None and not await self._is(kept, far):
            await self.end(record.session)  # it went on behind another one
            kept = None
        if kept is not None and kept.relay is not None:
            await self._incarnate(await self._answering(kept), record.incarnation, undo)
            self._write_tunnel(record, await kept.relay.tunnel())
            live.relay, kept.relay = kept.relay, None
            record.relay = live.relay.identity
            return []
        if isinstance(far, dict):
            self._write_tunnel(record, far)
            live.told_away = False  # it hears so from the session's own processes
            return []
        if not record.connected:
            return []
        if connection and "shell_port" in connection:
            place = place_clients(self._node.settings, record, connection, record.owner)
            await self._begin_anew(live, place, undo)
            return [UNANSWERED]
        fork = request.source != request.session
        made = await asyncio.to_thread(clients_of_image, self._node.settings, record, fork)
        if made is None:
            record.connected = False
            return ["its connection to Jupyter"]
        connection, same = made
        for _ in range(PORT_TRIES):
            try:
                await self._begin_anew(live, connection, undo)
            except Conflict as error:
                if "port" not in error.fields:
                    raise
                unix = connection["transport"] == "ipc"
                connection = other_place(self._node.settings, record, connection, unix)
                same = False
            else:
                return [] if fork else [UNANSWERED, *(() if same else (OTHER_PORTS,))]
        raise Unavailable("no free ports were found for the session's kernel connection; try again")

    async def _usable(self, session: str) -> Kept | None:
        """The relay that is kept here. One whose files are gone can neither be reached nor be
        replaced: it is ended, and the session gets another one when it comes back."""
        kept = self.kept.get(session)
        if kept is None or kept.relay is None or has_client_file(self._node.settings, session):
            return kept
        log.warning("session %s: the files of its relay are gone, so it is ended", session)
        await self.end(session)
        return None

    async def _is(self, kept: Kept, tunnel: dict[str, Any]) -> bool:
        """Whether that is the tunnel of the relay that is kept here."""
        if kept.relay is None:
            return False
        ours = await (await self._answering(kept)).tunnel()
        return bool(ours["server"] == tunnel.get("server"))

    async def _begin_anew(self, live: LiveSession, connection: dict[str, Any], undo: bool) -> None:
        """Start a relay that has never heard of the session; it begins in its incarnation."""
        record = live.record
        await asyncio.to_thread(remove_relay_folder, self._node.settings, record.session)
        await self.begin(live, connection)
        give_kernel_key(self._node.settings, record, connection)
        await self.run(live, absent=True)
        assert live.relay is not None
        await self._incarnate(live.relay, record.incarnation, undo)
        self._write_tunnel(record, await live.relay.tunnel())

    def taken(self, live: LiveSession) -> None:
        """Note that the session whose relay was kept lives here again."""
        if self.kept.pop(live.record.session, None) is not None:
            with contextlib.suppress(SingularityError):
                self._node.ledger.drop("relay", live.record.session)
        self.replace_ended(live.record.session, live)

    def give_back(self, live: LiveSession) -> None:
        """It could not be resumed: the relay goes on waiting for it."""
        kept = self.kept.get(live.record.session)
        if kept is not None and live.relay is not None:
            kept.relay, live.relay = live.relay, None
            self.replace_ended(live.record.session, kept)

    def replace_ended(self, session: str, holder: LiveSession | Kept) -> None:
        """Replace the relay of `holder` if it has ended. Called when a session that was on its way
        is here or is kept again: until then nobody could, and an end is told only once."""
        if holder.relay is not None and not holder.relay.capsule.watch.alive:
            self._exited(session)

    async def _answering(self, holder: LiveSession | Kept) -> Relay:
        """Its relay, which may just be replaced; raises `Unavailable` when that takes too long."""
        deadline = time.monotonic() + REPLACED_S
        while True:
            relay = holder.relay
            assert relay is not None
            try:
                await relay.status()
                # Else it was the next one that answered, which is not ready yet.
                if relay is holder.relay and relay.capsule.watch.alive:
                    return relay
                if time.monotonic() > deadline:
                    raise Unavailable("the relay of the kernel has ended; it is started again")
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
        await self.stop_replacing(session)
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
            with contextlib.suppress(SingularityError):  # it is gone: then another one is started
                await holder.relay.status()

    def report(self) -> list[dict[str, Any]]:
        """The sessions of which nothing is here but the relay, as `hello` shows them."""
        return [
            {**kept.record.report(False), "alive": False, "devices": [], "suspended": True}
            for session, kept in self.kept.items()
            if session not in self._node.sessions
        ]

    def trim(self, record: SessionRecord) -> None:
        """Keep the log of its relay bounded."""
        log_path = os.path.join(self._node.settings.relay_dir(record.session), "relay.log")
        trim_log(log_path, self._node.settings.log_bytes, record.uid)

    # -- inside -----------------------------------------------------------------------------------

    def save(self, kept: Kept) -> None:
        """Write down what a kept relay's session was."""
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
        """A relay said something by itself: a process of the user, so it may be anything."""
        if name == "wanted":
            self._node.emit(session, "session.wanted", request=str(data.get("request"))[:64])
            return
        names = ("requests_again", "outputs_rolled_back", "requests_lost")
        undone = {key: data.get(key) for key in names if isinstance(data.get(key), int)}
        if any(undone.values()):
            log.warning("session %s: %s", session, undone)

    def _exited(self, session: str) -> None:
        running = self._replacing.get(session)
        if self._holder(session) is not None and (running is None or running.done()):
            task = self._node.spawn(self._replace(session), "start of another relay")
            self._replacing[session] = task

    async def stop_replacing(self, session: str) -> None:
        """Start no other relay for a session that ends here, and end one that just starts; where
        its relay is kept, the session only leaves, and whoever comes back needs one."""
        if session in self.kept:
            return
        task = self._replacing.pop(session, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _replace(self, session: str) -> None:
        """Clients come back by themselves once the ports listen again."""
        delay = RELAY_RETRY_S
        while (holder := self._holder(session)) is not None:
            if isinstance(holder, Kept) and await self._usable(session) is None:
                return
            before, done = holder.relay, False
            try:
                await self.run(holder)
                done = self._holder(session) is holder  # else the session has left meanwhile
                if done:
                    return
            except (SingularityError, OSError) as error:
                log.warning("session %s: %s", session, error)
            finally:
                if not done and holder.relay is not None and holder.relay is not before:
                    await holder.relay.end(0.0)
            await asyncio.sleep(delay)
            delay = min(delay * 2, RELAY_RETRY_MAX_S)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
