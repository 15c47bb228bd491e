"""The process side of sessions: start, signal, end, and taking over after an agent restart.

A session owns two folders (runtime and /dev/shm, both its user's alone), two sockets, a process
tree and, for Jupyter, a relay. Its end removes all of them whatever the tree did: what left the
process group is found by its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from typing import Any

from singularity_proxy.capsule.images.image import LIMIT_S
from singularity_proxy.capsule.launcher import (
    CapsuleSpec,
    last_words,
    stripped_environment,
    trim_log,
)
from singularity_proxy.capsule.namespace import (
    NamespaceCapsule,
    NamespaceLauncher,
    kept_folders,
)
from singularity_proxy.capsule.process import ProcessWatch, read_exit_code
from singularity_proxy.capsule.tree import has_ended
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    SingularityError,
    Unavailable,
    may_pass,
)

from singularity_scheduler import logs
from singularity_scheduler.agent.devices.control import DeviceKeeper
from singularity_scheduler.agent.folders import open_session_folders
from singularity_scheduler.agent.memory import return_memory_soon
from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.processes import end_marked, end_process
from singularity_scheduler.agent.ranks.bridges import BridgeKeeper
from singularity_scheduler.agent.relays.client_places import place_clients
from singularity_scheduler.agent.relays.keeper import RelayKeeper
from singularity_scheduler.agent.relays.relay import (
    kernel_connection,
    remove_relay_folder,
    shim_command,
    write_private,
)
from singularity_scheduler.agent.rights.owners import (
    Owners,
    ended_by_itself,
    find_owner,
    how_it_ended,
)
from singularity_scheduler.agent.store.histories import HistoryKeeper
from singularity_scheduler.agent.store.resumes import (
    Resumer,
    ResumeRequest,
    say_kept,
    why_not_resumed,
)
from singularity_scheduler.agent.store.suspends import go_on, remove_copies

from .api import SessionApi
from .environment import session_variables
from .launch import LaunchRequest
from .live import LiveSession
from .logs import CAPSULE_LOG, SessionLogs
from .record import GangPart, Life, Phase, SessionRecord
from .rings import RingSet, ring_number
from .socket import SessionSocket

log = logging.getLogger("singularity.agent")

LIKED = {"USE_LIBUV": "0"}
"""What a session's processes find in their environment unless it says otherwise: torch's stores for
ranks to meet at without libuv, whose io_uring no process image can be taken of
(`singularity_proxy.worker.distributed.stores`)."""

ALONE = {"GLOO_SOCKET_IFNAME": "lo"}
"""The same for what is no part of a program on several nodes: ranks on host tensors listen on the
loopback only. gloo asks nobody who it is, and by itself it listens at the machine's name."""

ADOPT_AGAIN_S = (0.2, 1.0, 3.0)
"""Pauses before a session that could not be taken over is tried again."""

KEEP_TOMBSTONES = 256
"""Ended sessions kept until the service has asked how they ended."""


class Lifecycle:
    """Starts and ends the sessions of the node. One object per agent."""

    def __init__(self, node: Node, devices: DeviceKeeper) -> None:
        self._node = node
        self._devices = devices
        self._api = SessionApi(node, devices)
        self._resumer = Resumer(node)
        self.relays = RelayKeeper(node)
        self.bridges = BridgeKeeper(node)
        self.owners = Owners(node, self.relays, self._end_soon)
        self.logs = SessionLogs(node)
        self.histories = HistoryKeeper(node)

    # -- start ------------------------------------------------------------------------------------

    async def start(self, request: LaunchRequest) -> dict[str, Any]:
        """Start a session as the service asks; answer of `session.start`. What is left here of an
        earlier attempt is ended first. Raises `BadRequest`, `Conflict` (it exists, a port is
        taken), `Forbidden` or `NoSpace`; nothing is left then."""
        node = self._node
        if node.stopping:
            raise Unavailable("this node is being stopped; nothing was started")
        await self._end_earlier(request)
        identity = await node.identities.of(request.user)
        owner, gang = find_owner(request, identity.uid), request.gang
        record = SessionRecord(
            session=request.session,
            user=request.user,
            kind=request.kind,
            tier=request.tier,
            name=request.name,
            mode=request.mode,
            virtual_devices=request.virtual_devices,
            uid=identity.uid,
            gid=identity.gid,
            owner=owner,
            epoch=request.epoch,
            restartable=request.restartable,
            part=None if gang is None else GangPart(gang.id, gang.number, gang.parts, gang.key),
        )
        live = self._make(record)
        self._admit(live)
        try:
            node.save(live)
            open_session_folders(node.settings, record)
            self.logs.go_on(live)
            await live.socket.start()
            if request.connection is not None:
                place = place_clients(node.settings, record, request.connection, owner)
                request = request.reached_at(place)
            if request.mode == "joined":
                assert owner is not None
                record.process = owner
                live.joined = ProcessWatch(
                    owner, lambda _: self._process_exited(live), learn_code=True
                )
            else:
                await self._start_capsule(live, request)
                self.owners.watch(live)
            record.life = Life.LIVE
            if record.part is not None:
                record.part.begun = True
            node.save(live)
            self.relays.replace_ended(record.session, live)
        except BaseException as error:
            record.reason = "it could not be started"
            await self._undo(live)
            if isinstance(error, OSError):
                raise SingularityError(
                    f"the session could not be started ({error}); nothing was left behind"
                ) from error
            raise
        assert record.process is not None
        log.info("session of %s started as process %d", record.user, record.process.pid)
        node.emit(record.session, "process.live", pid=record.process.pid)
        if record.part is not None:
            node.emit(record.session, "session.bridge", bridge=record.part.address)
        watch = live.capsule.watch if live.capsule else live.joined
        if watch is not None and not watch.alive:  # it ended before anybody could listen
            self._process_exited(live)
        return {
            "pid": record.process.pid,
            "connection": request.connection,
            "env": session_variables(live, self._node) if request.mode == "joined" else {},
            "identity": identity.sentence,
            **({"bridge": record.part.address} if record.part else {}),
        }

    async def resume(self, request: ResumeRequest) -> dict[str, Any]:
        """Bring a session back from the store; answer of `session.resume`. Raises `Conflict` (it
        is here, files are missing), `Unsupported`, and what store and CRIU raise; the checkpoint
        is as it was and nothing is left here then."""
        node = self._node
        if node.stopping:
            raise Unavailable("this node is being stopped; nothing was started")
        self._check_absent(request.session)
        owner = self.owners.waiting(request.session)
        summary, told = await self._resumer.look(request)
        await node.identities.claim(request.user, told["uid"], told["gid"])
        record = self._resumer.record_of(request, summary, told)
        live = self._make(record)
        self._admit(live)
        try:
            node.save(live)
            open_session_folders(node.settings, record)
            await self.bridges.begin(live)  # as at its start
            ended = lambda _: self._process_exited(live)  # noqa: E731
            loss = await self._resumer.restore(live, request, summary, told, ended)
            if loss["rolled_back"]:
                self.logs.go_on(live)
            loss["lost"] += await self.relays.connect(live, request)
            await live.socket.start()
            self.owners.watch_again(live, request.owner_pid, owner)
            record.life = Life.LIVE
            if record.part is not None:
                record.part.begun = True
            node.save(live)
            self.relays.taken(live)
            node.on_step("resume.recorded")
            await go_on(node, live, self.relays)
            node.on_step("resume.thawed")
            await self.relays.tell_undone(live, loss)
        except BaseException as error:
            record.reason = "it could not be resumed"
            self.relays.give_back(live)
            await self._undo(live)
            if isinstance(error, OSError):
                raise why_not_resumed(live, error) from error
            if isinstance(error, SingularityError):
                say_kept(error)
                error.message = "; ".join([error.message, *live.reconciled])
            raise
        finally:
            return_memory_soon()
        assert record.process is not None
        log.info("session of %s resumed as process %d", record.user, record.process.pid)
        node.emit(record.session, "session.restored", loss=loss)
        if record.part is not None:
            node.emit(record.session, "session.bridge", bridge=record.part.address)
        if live.capsule is not None and not live.capsule.watch.alive:
            self._process_exited(live)
        return {
            "pid": record.process.pid,
            "loss": loss,
            "relay": live.relay is not None,
            **({"bridge": record.part.address} if record.part else {}),
        }

    async def _end_earlier(self, request: LaunchRequest) -> None:
        """No two attempts of a run are here at once. `Conflict` when what is here is no earlier
        one."""
        live = self._node.sessions.get(request.session)
        if live is None:
            return
        if request.epoch <= live.record.epoch:
            raise Conflict(f"session {request.session} was started before", session=request.session)
        await self.end(live, "its next attempt begins", 0.0, elsewhere=True)
        self.forget(live)

    def _check_absent(self, session: str) -> None:
        known = self._node.sessions.get(session)
        if known is not None and known.record.life is not Life.ENDED:
            raise Conflict(f"session {session} is on this node", session=session)

    def _admit(self, live: LiveSession) -> None:
        """One of several commands to bring the same session here is the first."""
        self._check_absent(live.record.session)
        self._node.sessions[live.record.session] = live

    async def _undo(self, live: LiveSession) -> None:
        """Nothing is left of a session that could not be started."""
        if live.joined:  # the caller's own process, which goes on without a session
            live.joined.close()
            live.joined = None
        await self._clean(live, 0.0)
        self._node.sessions.pop(live.record.session, None)
        with contextlib.suppress(SingularityError):
            self._node.ledger.forget_session(live.record.session)

    def _make(self, record: SessionRecord) -> LiveSession:
        settings = self._node.settings
        live: LiveSession
        rings = RingSet(
            record,
            settings.session_shm(record.session),
            lambda ring: self._devices.worker_ended(live, ring),
        )
        socket = SessionSocket(
            settings.session_dir(record.session),
            settings.private_dir,
            uid=record.uid,
            gid=record.gid,
            handlers=self._api.handlers(record.session),
            on_need=lambda ring_id: (
                self._devices.needed(live, ring_id) if ring_number(ring_id) else None
            ),
            within=self._node.held_by(record.uid),
        )
        live = LiveSession(record, rings, socket)
        return live

    async def _start_capsule(self, live: LiveSession, request: LaunchRequest) -> None:
        record, node = live.record, self._node
        folder = node.settings.session_dir(record.session)
        argv = list(request.argv)
        if request.connection is not None:
            owner = (record.uid, record.gid)
            kernel_file = os.path.join(folder, "kernel.json")
            record.connected = True
            await self.relays.begin(live, request.connection)
            write_private(kernel_file, kernel_connection(request.connection, folder), owner)
            argv = [word.replace("{connection_file}", kernel_file) for word in argv]
            argv = shim_command(node.settings, folder, argv)
        await self.bridges.begin(live)  # first: it has the port at which ranks meet
        # A mapped uid has no entry in the password file; who asks for a name looks here first.
        name = {"USER": record.user, "LOGNAME": record.user}
        spec = CapsuleSpec(
            argv=argv,
            env={
                **LIKED,
                **({} if record.part else ALONE),
                **name,
                **stripped_environment(request.env),
                **session_variables(live, self._node),
            },
            cwd=request.cwd,
            log_path=os.path.join(folder, CAPSULE_LOG),
            uid=record.uid,
            gid=record.gid,
            tmp=node.settings.session_tmp(record.session),
            keep=(folder, node.settings.session_shm(record.session)),
            lease=node.lease.begin(live) if isinstance(node.launcher, NamespaceLauncher) else None,
        )
        record.cwd, record.kept = request.cwd, kept_folders(spec)
        live.capsule = await node.launcher.start(spec, lambda _: self._process_exited(live))
        record.process = live.capsule.identity
        node.save(live)
        if request.connection is not None:
            await self.relays.run(live)

    # -- what happens to the processes ------------------------------------------------------------

    def _process_exited(self, live: LiveSession) -> None:
        """The kernel or run ended by itself (or somebody killed it): so does the session."""
        watch = live.capsule.watch if live.capsule else live.joined
        if live.record.life is not Life.LIVE or watch is None or self._node.stopping:
            return
        code = watch.exit_code
        if code is None:  # nobody was there when it ended
            code = self._read_exit_code(live.record)
        live.record.exit_code = code
        log_path = os.path.join(self._node.settings.session_dir(live.record.session), CAPSULE_LOG)
        words = last_words(log_path, live.record.uid) if code else ""
        self._end_soon(live, how_it_ended(code, words))

    def _read_exit_code(self, record: SessionRecord) -> int | None:
        return read_exit_code(self._node.settings.session_dir(record.session), record.uid)

    def _end_soon(self, live: LiveSession, reason: str) -> None:
        self._node.spawn(self.end(live, reason, 1.0), "end of a session")

    def signal(self, live: LiveSession, signum: int) -> None:
        """Send a signal to the session's process group (joined: to its first process)."""
        live.record.check_live()
        if not 0 < signum < 65:
            raise BadRequest(f"{signum} is not a signal")
        if live.capsule:
            live.capsule.signal(signum)
        elif live.joined:
            live.joined.signal(signum)

    # -- end --------------------------------------------------------------------------------------

    async def end(
        self, live: LiveSession, reason: str, grace_s: float, *, elsewhere: bool = False
    ) -> int | None:
        """End the session and remove everything it had; returns the exit code. Idempotent: a
        second caller waits for the same end, an ended session is answered from its tombstone.
        `elsewhere`: it goes on from the store, so its relay stays and its end is not told."""
        if live.record.life is Life.ENDED:
            return live.record.exit_code
        if live.record.published:
            await self.leave(live)
            return None
        live.record.elsewhere = live.record.elsewhere or elsewhere
        if live.ending is None:
            live.record.life = Life.ENDING
            live.record.reason = reason
            self._node.try_save(live)
            live.ending = self._node.spawn(self._end(live, grace_s), "end of a session")
        return await asyncio.shield(live.ending)

    async def _end(self, live: LiveSession, grace_s: float) -> int | None:
        node, record = self._node, live.record
        await self._clean(live, grace_s)
        record.life = Life.ENDED
        log.info("session of %s ended: %s", record.user, record.reason)
        node.try_save(live)
        if not record.elsewhere:
            node.writers.forget(record.session)
            node.emit(
                record.session, "process.exited", exit_code=record.exit_code, reason=record.reason
            )
        self._bury(KEEP_TOMBSTONES)
        return record.exit_code

    async def _clean(self, live: LiveSession, grace_s: float) -> None:
        record, settings = live.record, self._node.settings
        record.life = Life.ENDING
        live.cancel.set()
        live.savings.give_up()
        if live.owner:
            live.owner.close()
        if live.capsule:
            # To end in good order it would have to run.
            code = await live.capsule.end(0.0 if self._node.lease.holds(live) else grace_s)
            record.exit_code = code if record.exit_code is None else record.exit_code
        if live.joined:
            await end_process(live.joined, grace_s)
        await self.histories.merge(live)
        await live.socket.close()
        if not isinstance(live.capsule, NamespaceCapsule):  # from which nothing escapes
            # A session that goes on at another node of this machine still has the environment that
            # it was started with here; it is in a namespace, and what escapes a capsule is in none.
            marker = f"SINGULARITY_SOCKET={live.socket.path}".encode()
            await end_marked(marker, beside_us=record.mode != "joined")
        await self.bridges.end(live)
        if record.elsewhere:
            await self.relays.wait_for(live)
        else:
            await self.relays.stop_replacing(record.session)
        if live.relay:
            await live.relay.end(1.0)
            await asyncio.to_thread(remove_relay_folder, settings, record.session)
        await self._devices.drop(live)
        await live.savings.settle()
        for ring in list(live.rings.rings.values()):
            live.rings.forget(ring)
        self._node.lease.remove(live)
        await asyncio.to_thread(self.logs.keep, live)
        for folder in (
            settings.session_dir(record.session),
            settings.session_shm(record.session),
        ):
            await asyncio.to_thread(shutil.rmtree, folder, True)

    async def leave(self, live: LiveSession) -> None:
        """The session is in the store: remove what is here of it, and answer whoever asks for its
        suspend again. Idempotent."""
        if live.ending is None:
            live.ending = self._node.spawn(self._leave(live), "leave of a session")
        await asyncio.shield(live.ending)

    async def _leave(self, live: LiveSession) -> None:
        record, node = live.record, self._node
        saving = record.saving or {}
        self.relays.keep(live)
        await self._clean(live, 0.0)
        node.on_step("suspend.ended")
        if saving.get("command"):
            answer = {"result": saving["published"]}
            with contextlib.suppress(SingularityError):
                node.ledger.put_answer(record.session, saving["command"], answer)
        with contextlib.suppress(SingularityError):
            node.ledger.drop("session", record.session)
        if node.sessions.get(record.session) is live:
            del node.sessions[record.session]
        log.info("session of %s left this node: %s", record.user, record.reason)
        node.emit(record.session, "session.suspended", **saving["published"])
        node.on_step("suspend.removed")

    def forget(self, live: LiveSession) -> None:
        """The service knows how the session ended: drop the tombstone."""
        if live.record.life is Life.ENDED:
            self._node.sessions.pop(live.record.session, None)
            self._node.ledger.forget_session(live.record.session)

    def _bury(self, keep: int) -> None:
        ended = [x for x in self._node.sessions.values() if x.record.life is Life.ENDED]
        for live in ended[: max(0, len(ended) - keep)]:
            self.forget(live)

    # -- after an agent restart -------------------------------------------------------------------

    async def adopt(self, record: SessionRecord) -> None:
        """Take over a session of the agent before this one: its processes never noticed. Raises
        nothing: an error that may pass is waited for a while, what cannot be taken over then ends,
        and keeps no other session from it."""
        with logs.bind(session=record.session):
            error = await self._try_adopt(record)
            if error is None:
                return
            log.error("session %s cannot be taken over", record.session, exc_info=error)
            try:
                live = self._node.sessions[record.session]
                await self.end(live, f"the node agent could not take it over ({error})", 0.0)
            except Exception as worse:
                log.error("session %s cannot be ended", record.session, exc_info=worse)

    async def _try_adopt(self, record: SessionRecord) -> Exception | None:
        """Take it over, again where an error may pass; returns the last one, None: it is done."""
        for pause in (*ADOPT_AGAIN_S, None):
            try:
                await self._adopt(record)
                return None
            except Exception as error:
                if pause is None or record.life is not Life.LIVE or not may_pass(error):
                    return error
                log.warning("session %s is not taken over yet: %s", record.session, error)
            await self._let_go(record.session)
            await asyncio.sleep(pause)
        raise AssertionError("the last try has no pause")

    async def _let_go(self, session: str) -> None:
        """Hold nothing of a session that was taken over in part, so that it can be tried again; its
        processes go on."""
        live = self._node.sessions.pop(session, None)
        if live is None:
            return
        capsules = [c for c in (live.capsule, live.relay and live.relay.capsule, live.bridge) if c]
        for watch in (live.owner, live.joined, *(capsule.watch for capsule in capsules)):
            if watch is not None:
                watch.close()
        live.rings.let_go()
        if live.word is not None:
            live.word.close()
            live.word = None
        with contextlib.suppress(OSError):
            await live.socket.close()

    async def _adopt(self, record: SessionRecord) -> None:
        node = self._node
        live = self._make(record)
        node.sessions[record.session] = live
        if record.life is Life.ENDED:
            return
        if record.life is Life.ENDING and record.published:
            self._adopt_processes(live)
            await asyncio.to_thread(remove_copies, node, live)
            await self.leave(live)
            return
        if record.life is not Life.LIVE:
            if half_started := record.life is Life.STARTING:
                record.reason = "the node agent was restarted while it started"
            self._adopt_processes(live)
            await self.end(live, record.reason, 0.0)
            if half_started:  # nobody was told that it started: the command is simply repeated
                self.forget(live)
            return
        self._adopt_processes(live)
        if live.capsule is not None and has_ended(live.capsule.identity):
            record.life = Life.ENDING
            over = ended_by_itself(self._read_exit_code(record))
            if not over and await node.stores.has_whole(record.user, record.session):
                record.elsewhere = True  # unknown here, the service has it go on from the store
                await self._undo(live)
                return
            record.life = Life.LIVE
            self._process_exited(live)
            return
        await asyncio.to_thread(remove_copies, node, live)
        for lost in live.rings.adopt():
            log.error("session %s: ring %s is gone", record.session, lost.ring_id)
        await live.socket.start()
        if record.saving is not None:
            if isinstance(live.capsule, NamespaceCapsule):
                await asyncio.to_thread(live.capsule.wait_untraced, LIMIT_S)
            await go_on(node, live, self.relays)
        await self._devices.settle(live)
        if record.phase in (Phase.NONE, Phase.PARKED):
            node.leases.release(record.session)
        await self.relays.listen(live)
        watch = live.capsule.watch if live.capsule else live.joined
        if watch is None:
            await self.end(live, "the node agent was restarted while it started", 0.0)

    def _adopt_processes(self, live: LiveSession) -> None:
        record = live.record
        if record.mode == "joined":
            if record.process is not None:
                live.joined = ProcessWatch(
                    record.process, lambda _: self._process_exited(live), learn_code=True
                )
            return
        if record.process is not None:
            live.capsule = self._node.launcher.adopt(
                record.process, lambda _: self._process_exited(live)
            )
            self._node.lease.adopt(live)
        self.relays.adopt(live)
        self.bridges.adopt(live)
        if record.life is Life.LIVE:
            self.owners.watch(live)

    def trim_logs(self, live: LiveSession) -> None:
        """Keep the session's log files bounded; called every few seconds."""
        self.logs.trim(live)
        self.relays.trim(live.record)
        if live.bridge is not None:
            self.bridges.trim(live.record)
        for proxy in (*live.proxies.values(), *live.off_device.values()):
            trim_log(proxy.log_path, self._node.settings.log_bytes)
