"""The agent's own socket: what the scheduler service may command.

Commands that change a session carry (epoch, seq). The answer to each is written to the ledger
before it is sent, so a command that is repeated after a lost connection, or after a restart of
either side, is answered again and not carried out twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from singularity_proxy.errors import BadRequest, SingularityError, Unsupported, from_wire, to_wire
from singularity_proxy.wire.rpc import Credentials, Handler, Peer

from singularity_scheduler import logs

from .devices.control import DeviceKeeper
from .devices.device_restores import DeviceRestorer
from .node import Node
from .ranks import gang_barrier
from .relays.relay import read_client_file
from .rights.leaders import Leaders
from .rights.leases import LeaseGrant, boot_clock
from .rights.node_lease import Renewal
from .sessions.launch import LaunchRequest, number, text
from .sessions.lifecycle import Lifecycle
from .sessions.live import LiveSession
from .store.proofs import Prover
from .store.resumes import ResumeRequest
from .store.return_checks import check_return
from .store.stores import reference
from .store.suspends import Suspender

log = logging.getLogger("singularity.agent")

LEADER = ("node", "leader")
"""Which service was obeyed last, in the agent's ledger."""


MOVES = frozenset(
    {
        *("session.checkpoint", "session.suspend", "session.resume", "session.end"),
        *("device.checkpoint", "device.put_back"),
    }
)
"""Commands that a proof of the session's checkpoints gives way to."""

MAX_WAIT_S = 600.0
"""No call of a barrier holds its session's lock for longer."""


class CommandServer:
    """Handlers of `agent.sock`. `stop` ends the agent after its last answer."""

    def __init__(
        self,
        node: Node,
        lifecycle: Lifecycle,
        devices: DeviceKeeper,
        prover: Prover,
        stop: Callable[[], Awaitable[None]],
    ) -> None:
        self._node = node
        self._prover = prover
        self._lifecycle = lifecycle
        self._devices = devices
        self._suspender = Suspender(node, devices, lifecycle.relays)
        self._restorer = DeviceRestorer(node, devices, self._suspender)
        self._stop = stop
        self._running: dict[tuple[str, str], asyncio.Task[Any]] = {}
        known = node.ledger.get(*LEADER)
        self._leaders = Leaders((known[0], known[1]) if known else None, self._keep_leader)

    def _keep_leader(self, leader: tuple[str, int]) -> None:
        self._node.ledger.put(*LEADER, list(leader))

    def handlers(self) -> dict[str, Handler]:
        """Method names as in the calls."""
        methods: dict[str, Handler] = {
            "hello": self.hello,
            "ping": self.ping,
            "identity": self.identity,
            "session.start": self.start,
            "session.signal": self.signal,
            "session.end": self.end,
            "session.log": self.log,
            "device.attach": self.attach,
            "device.park": self.park,
            "device.resize": self.resize,
            "device.checkpoint": self.device_checkpoint,
            "device.put_back": self.put_back,
            "session.checkpoint": self.checkpoint,
            "session.barrier": self.barrier,
            "session.suspend": self.suspend,
            "session.resume": self.resume,
            "session.connection": self.connection,
            "session.own": self.own,
            "session.peers": self.peers,
            "checkpoints.list": self.list_checkpoints,
            "checkpoints.delete": self.delete_checkpoint,
            "checkpoints.prove": self.prove_checkpoint,
            "renew": self.renew,
            "shutdown": self.shutdown,
        }
        return {name: _bound(self._led(name, method)) for name, method in methods.items()}

    def _led(self, name: str, method: Handler) -> Handler:
        """`method`, for the service that leads and no older one."""

        async def call(peer: Peer, params: dict[str, Any]) -> Any:
            if name == "hello":
                self._leaders.hello(peer, params)
            else:
                self._leaders.check(peer)
            if name in MOVES:
                self._prover.give_way(str(params.get("session")))
            return await method(peer, params)

        return call

    def closed(self, peer: Peer) -> None:
        """A connection ended."""
        if self._node.service is peer:
            self._node.service = None

    async def _once(
        self, params: dict[str, Any], method: str, run: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Carry out a command of (epoch, seq) once, however often it is asked for."""
        session = text(params, "session")
        seq = params.get("seq")
        if seq is None:
            return await run()
        command = f"{method}/{params.get('epoch', '-')}/{seq}"
        stored = self._node.ledger.answer(session, command)
        if stored is None:
            key = (session, command)
            task = self._running.get(key)
            if task is None:
                task = asyncio.ensure_future(self._carry_out(session, command, run))
                self._running[key] = task
                task.add_done_callback(lambda _: self._running.pop(key, None))
            stored = await asyncio.shield(task)
        if "error" in stored:
            raise from_wire(stored["error"])
        return stored["result"]

    async def _carry_out(
        self, session: str, command: str, run: Callable[[], Awaitable[Any]]
    ) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = {"result": await run()}
        except SingularityError as error:
            answer = {"error": to_wire(error)}
        except Exception as error:
            log.error("%s of session %s failed", command, session, exc_info=error)
            answer = {"error": to_wire(error)}
        if session in self._node.sessions:
            try:
                self._node.ledger.put_answer(session, command, answer)
            except SingularityError as error:  # done is done: only a repeat would be done again
                log.error("%s", error.message)
        return answer

    # -- handlers ---------------------------------------------------------------------------------

    async def ping(self, peer: Peer, params: dict[str, Any]) -> Any:
        """The agent's event loop turns."""
        return {}

    async def hello(self, peer: Peer, params: dict[str, Any]) -> Any:
        """The truth about this node. The caller becomes the service (events and session.command go
        to it) unless it says `observer: true`."""
        if not params.get("observer") and self._node.service is not peer:
            self._node.service = peer
        node = self._node
        recovery = node.settings.journal_bytes > 0
        images = await node.images.capability()  # first: "sent_at" is the time of the answer
        return {
            "node": node.settings.node,
            "instance": node.instance,
            "version": node.version,
            "spot": node.settings.spot,
            "cluster": node.settings.cluster,
            "sent_at": boot_clock(),
            "devices": node.devices,
            "health": node.health,
            "capabilities": {
                "recovery": {
                    "available": recovery,
                    "reason": "a killed device proxy is rebuilt from snapshot and journal"
                    if recovery
                    else "switched off by journal_bytes = 0",
                },
                "park_by_driver": self._devices.parks(),
                "process_image": images,
                "store": node.stores.describe(),
                "torch": {
                    "available": node.torch is not None,
                    "reason": node.torch.version if node.torch else "torch is not installed here",
                },
            },
            "sessions": [
                *(live.report() for live in node.sessions.values()),
                *self._lifecycle.relays.report(),
            ],
        }

    async def identity(self, _: Peer, params: dict[str, Any]) -> Any:
        return (await self._node.identities.of(text(params, "user"))).to_json()

    async def start(self, peer: Peer, params: dict[str, Any]) -> Any:
        request = LaunchRequest.parse(params)
        if request.owner_pid is not None:
            _require_this_machine(peer)
        return await self._once(params, "session.start", lambda: self._lifecycle.start(request))

    async def signal(self, _: Peer, params: dict[str, Any]) -> Any:
        live = self._node.session(text(params, "session"))
        self._lifecycle.signal(live, number(params, "signum"))
        return {}

    async def log(self, _: Peer, params: dict[str, Any]) -> Any:
        session = text(params, "session")
        return self._lifecycle.logs.read(session, number(params, "offset"), number(params, "limit"))

    async def end(self, _: Peer, params: dict[str, Any]) -> Any:
        live = self._node.sessions.get(text(params, "session"))
        if live is None:
            if params.get("keep") is not True or params.get("keep_relay") is False:
                await self._lifecycle.relays.end(text(params, "session"))
            if params.get("keep") is not True:
                self._node.forget_absent(text(params, "session"))
            return {"exit_code": None}
        grace_s = params.get("grace_s")
        if not isinstance(grace_s, int | float) or grace_s < 0:
            raise BadRequest("'grace_s' must be a number of seconds, 0 or more")
        reason = str(params.get("reason") or "ended by the scheduler")
        published, back_to = live.record.published, params.get("back_to")
        if isinstance(back_to, str) and live.record.alive:
            await check_return(self._node, live, back_to, discards=True)
        elsewhere = params.get("keep") is True  # it goes on from the store
        code = await self._lifecycle.end(live, reason, float(grace_s), elsewhere=elsewhere)
        self._lifecycle.forget(live)
        if elsewhere:
            if params.get("keep_relay") is False:
                await self._lifecycle.relays.end(live.record.session)
        elif published:
            await self._lifecycle.relays.end(live.record.session)
            self._node.forget_absent(live.record.session)
        # Its checkpoints stay: which of them go, and when, is the scheduler's to say.
        return {"exit_code": code}

    async def attach(self, _: Peer, params: dict[str, Any]) -> Any:
        live, lease, devices = self._placed(params)
        return await self._once(
            params, "device.attach", lambda: self._devices.attach(live, lease, devices)
        )

    async def resize(self, _: Peer, params: dict[str, Any]) -> Any:
        live, lease, devices = self._placed(params)
        return await self._once(
            params, "device.resize", lambda: self._devices.resize(live, lease, devices)
        )

    def _placed(self, params: dict[str, Any]) -> tuple[LiveSession, LeaseGrant, list[str]]:
        """Of a command that says which devices a session has from now on."""
        live = self._node.session(text(params, "session"))
        epoch, devices = number(params, "epoch"), params.get("devices")
        if not isinstance(devices, list) or not all(isinstance(d, str) for d in devices):
            raise BadRequest("'devices' must be a list of device ids")
        ttl_s = params.get("ttl_s", self._node.settings.lease_ttl_s)
        if not isinstance(ttl_s, int | float) or ttl_s <= 0:
            raise BadRequest("'ttl_s' must be a positive number of seconds")
        lease = LeaseGrant(epoch, boot_clock(), float(ttl_s), str(params.get("reason") or ""))
        return live, lease, devices

    async def park(self, _: Peer, params: dict[str, Any]) -> Any:
        live = self._node.session(text(params, "session"))
        epoch, reason = number(params, "epoch"), str(params.get("reason") or "")
        force, moving = params.get("force") is True, params.get("moving") is True
        return await self._once(
            params, "device.park", lambda: self._devices.park(live, epoch, reason, force, moving)
        )

    async def device_checkpoint(self, _: Peer, params: dict[str, Any]) -> Any:
        return await self._checkpoint(params, "device.checkpoint", "device")

    async def checkpoint(self, _: Peer, params: dict[str, Any]) -> Any:
        level = params.get("level")
        return await self._checkpoint(
            params, "session.checkpoint", None if level is None else str(level)
        )

    async def _checkpoint(self, params: dict[str, Any], method: str, level: str | None) -> Any:
        live = self._node.session(text(params, "session"))
        name, standing = _name(params), params.get("standing") is True
        epoch = number(params, "epoch") if params.get("epoch") is not None else None
        return await self._once(
            params,
            method,
            lambda: self._fenced(
                live, self._suspender.checkpoint(live, epoch, name, level, standing)
            ),
        )

    async def put_back(self, _: Peer, params: dict[str, Any]) -> Any:
        live = self._node.session(text(params, "session"))
        epoch, checkpoint = number(params, "epoch"), text(params, "checkpoint")
        discard = params.get("discard") is True
        return await self._once(
            params,
            "device.put_back",
            lambda: self._fenced(live, self._restorer.put_back(live, epoch, checkpoint, discard)),
        )

    async def suspend(self, _: Peer, params: dict[str, Any]) -> Any:
        session, name = text(params, "session"), _name(params)
        epoch, reason = number(params, "epoch"), str(params.get("reason") or "")
        seq = None if params.get("seq") is None else number(params, "seq")
        standing, urgent = params.get("standing") is True, params.get("urgent") is True
        back_to = params.get("back_to")

        async def run() -> Any:
            live = self._node.session(session)  # here: a repeated command finds none
            if isinstance(back_to, str):
                await check_return(self._node, live, back_to)
            job = self._suspender.suspend(live, epoch, seq, name, reason, standing, urgent)
            done = await self._fenced(live, job)
            await self._lifecycle.leave(live)
            return done

        return await self._once(params, "session.suspend", run)

    async def barrier(self, _: Peer, params: dict[str, Any]) -> Any:
        """`elastic.coordinator.Stoppable` of one part of a gang: "ask", "hold" or "release"."""
        live, call = self._node.session(text(params, "session")), text(params, "call")
        epoch = number(params, "epoch")
        if call == "ask":
            return await gang_barrier.ask(self._node, live, epoch)
        if call == "release":
            await gang_barrier.release(live)
            return {}
        if call != "hold":
            raise BadRequest(f"'call' is 'ask', 'hold' or 'release', not '{call}'")
        targets = params.get("targets")
        if not isinstance(targets, dict):
            raise BadRequest("'targets' must map groups to numbers of collectives")
        targets = {key: number(targets, key) for key in targets}
        return await gang_barrier.hold(
            self._node,
            live,
            epoch,
            targets,
            _seconds(params, "deadline_s"),
            _seconds(params, "grace_s"),
        )

    async def _fenced(self, live: LiveSession, job: Awaitable[Any]) -> Any:
        """`job`, after whose failure a session ends here that may not go on."""
        try:
            return await job
        except SingularityError:
            if live.fenced:
                await self._lifecycle.end(live, live.fenced, 0.0, elsewhere=live.record.elsewhere)
            raise

    async def resume(self, _: Peer, params: dict[str, Any]) -> Any:
        request, terms = ResumeRequest.parse(params), params.get("terms")
        if isinstance(terms, dict):
            self._node.lease.first(Renewal.parse(terms))
        return await self._once(params, "session.resume", lambda: self._lifecycle.resume(request))

    async def connection(self, _: Peer, params: dict[str, Any]) -> Any:
        asked = params.get("incarnation")
        number = asked if isinstance(asked, int) and asked > 0 else None
        session, undo = text(params, "session"), params.get("undo") is True
        found = await self._lifecycle.relays.connection(session, number, undo)
        return {
            "connection": found,
            "clients": read_client_file(self._node.settings, session),
        }

    async def own(self, peer: Peer, params: dict[str, Any]) -> Any:
        _require_this_machine(peer)
        session, owner_pid = text(params, "session"), number(params, "owner_pid")
        await self._lifecycle.owners.own(session, owner_pid)
        return {}

    async def peers(self, _: Peer, params: dict[str, Any]) -> Any:
        live, peers = self._node.session(text(params, "session")), params.get("peers")
        if not isinstance(peers, dict) or not all(isinstance(at, str) for at in peers.values()):
            raise BadRequest("'peers' must map the numbers of parts to their bridges' addresses")
        await self._lifecycle.bridges.set_peers(live, peers)
        return {}

    async def list_checkpoints(self, _: Peer, params: dict[str, Any]) -> Any:
        session, user = text(params, "session"), text(params, "user")
        found = await self._node.stores.call(user, lambda box: box.list(session))
        return [reference(summary) for summary in found]

    async def delete_checkpoint(self, _: Peer, params: dict[str, Any]) -> Any:
        session, user, id = text(params, "session"), text(params, "user"), text(params, "id")
        await self._node.stores.call(user, lambda box: box.delete(session, id, head_too=True))
        self._node.stores.littered(user)
        if (live := self._node.sessions.get(session)) is not None:
            self._node.spawn(self._lifecycle.relays.retain(live), "retention")
        return {}

    async def prove_checkpoint(self, _: Peer, params: dict[str, Any]) -> Any:
        session, user, id = text(params, "session"), text(params, "user"), text(params, "id")
        return await self._prover.prove(session, user, id)

    async def renew(self, _: Peer, params: dict[str, Any]) -> Any:
        now = boot_clock()
        ttl_s, leases = params.get("ttl_s"), params.get("leases")
        if not isinstance(ttl_s, int | float) or ttl_s <= 0 or not isinstance(leases, list):
            raise BadRequest("a renewal needs 'leases' and a positive 'ttl_s'")
        asked = [(text(x, "session"), number(x, "epoch")) for x in leases]
        node, terms = self._node, params.get("terms")
        if isinstance(terms, dict):
            node.lease.renewed(Renewal.parse(terms))
        held = set(node.leases.renew(asked, float(ttl_s), now))
        node.try_save_leases()
        return {
            "held": [{"session": s, "epoch": e} for s, e in asked if s in held],
            "gone": [
                s for s, _ in asked if s not in node.sessions or not node.sessions[s].record.alive
            ],
            "sent_at": boot_clock(),
            "over": node.lease.over,
        }

    async def shutdown(self, _: Peer, params: dict[str, Any]) -> Any:
        await self._stop()
        return {}


def _require_this_machine(peer: Peer) -> None:
    """Raise `Unsupported` when the service is on another machine: a pid means a process there, and
    here maybe another one."""
    if not isinstance(peer.who, Credentials):
        raise Unsupported(
            "the session belongs to a process of the service's machine, so it cannot start on this "
            "one; nothing was done: start it there, and migrate it here"
        )


def _seconds(params: dict[str, Any], name: str) -> float:
    value = params.get(name)
    if not isinstance(value, int | float) or not 0 <= value <= MAX_WAIT_S:
        raise BadRequest(f"'{name}' must be a number of seconds, 0 to {MAX_WAIT_S:g}")
    return float(value)


def _name(params: dict[str, Any]) -> str:
    name = str(params.get("name") or "")
    if len(name) > 200:
        raise BadRequest("the name of a checkpoint has at most 200 characters")
    return name


def _bound(method: Handler) -> Handler:
    """`method`, whose log lines say which session it is about."""

    async def call(peer: Peer, params: dict[str, Any]) -> Any:
        session = params.get("session")
        with logs.bind(session=session if isinstance(session, str) else None):
            return await method(peer, params)

    return call
