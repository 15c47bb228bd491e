"""What a session's own processes may ask: the handlers behind the per-session socket.

Workers open rings, the kernel extension reports activity, magics ask for status and act. Verbs are
decided by the scheduler service; the agent only passes them on for this one session.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.errors import BadRequest, Conflict, Unavailable, Unreached
from singularity_proxy.wire.rpc import Handler, Peer

from singularity_scheduler import logs
from singularity_scheduler.agent.devices.control import DeviceKeeper
from singularity_scheduler.agent.node import Node
from singularity_scheduler.client.values import kept
from singularity_scheduler.client.verbs import CHANGES, RUNS, VERBS

from .launch import number, text
from .live import LiveSession
from .record import Phase
from .rings import check_torch

COMMAND_LIMIT_S = 600.0
"""A migrate waits until a device is free."""

ACTS = (*CHANGES, "fork", "submit")
"""Commands that change something."""

ASKED_STATE = ("status", "why")
"""Questions about the state at this moment."""

SETTLE_S = 1.0
"""So long an attach that this node is at the end of is waited for before such a question is put."""

MADE = ("fork", "submit")
"""Those that make another session: it is looked for elsewhere."""


class SessionApi:
    """Makes the handlers of one session's socket."""

    def __init__(self, node: Node, devices: DeviceKeeper) -> None:
        self._node = node
        self._devices = devices

    def handlers(self, session: str) -> dict[str, Handler]:
        """Handlers with rights on `session` alone."""

        def verb(name: str) -> Handler:
            async def call(_: Peer, params: dict[str, Any]) -> Any:
                with logs.bind(session=session):
                    return await self.command(session, name, params)

            return call

        async def ring_open(peer: Peer, params: dict[str, Any]) -> Any:
            with logs.bind(session=session):
                return self.open_ring(session, peer, params)

        async def activity(_: Peer, params: dict[str, Any]) -> Any:
            return self.activity(session, params)

        async def record(_: Peer, params: dict[str, Any]) -> Any:
            with logs.bind(session=session):
                return self.record(session, params)

        return {
            "ring.open": ring_open,
            "activity": activity,
            "record": record,
            **{name: verb(name) for name in (*VERBS, *RUNS)},
        }

    def open_ring(self, session: str, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """`ring.open`: a ring for the calling process, told by the kernel who it is."""
        live = self._node.session(session)
        check_torch(
            text(params, "torch_version"), str(params.get("git_version") or ""), self._node.torch
        )
        try:
            worker = ProcessIdentity.of(peer.credentials.pid)
        except ProcessLookupError:
            raise Conflict("the process that asked for a ring has ended") from None
        return self._devices.open_ring(live, number(params, "virtual_device"), worker)

    def activity(self, session: str, params: dict[str, Any]) -> dict[str, Any]:
        """`activity`: the kernel started or finished a cell."""
        busy = params.get("busy")
        if not isinstance(busy, bool):
            raise BadRequest("'busy' must be true or false")
        live = self._node.session(session)
        live.record.busy = busy
        self._node.save(live)
        self._node.emit(session, "activity", busy=busy, at=_now())
        return {}

    def record(self, session: str, params: dict[str, Any]) -> dict[str, Any]:
        """`record`: a run has new `values`. Answered when they are on disk here, whether or not the
        service is there; ``{"refused"}`` has a sentence for each that is not kept."""
        values = params.get("values")
        if not isinstance(values, dict):
            raise BadRequest("'values' must be an object, such as {'loss': 0.1}")
        live = self._node.session(session)
        found, refused = kept(live.record.recorded, values)
        new = {n: v for n, v in found.items() if n in values and n not in refused}
        if found != live.record.recorded:
            live.record.recorded = found
            self._node.save(live)
            self._node.emit(session, "recorded", values=new)
        return {"refused": list(refused.values())}

    async def command(self, session: str, verb: str, args: dict[str, Any]) -> Any:
        """Pass a verb on to the service; `status` is answered from here while it is away."""
        live = self._node.session(session)
        service = self._node.service
        if service is not None and verb in ASKED_STATE:
            args = {**args, "here": await self._settled(live)}
        if service is not None:
            try:
                return await service.call(
                    "session.command",
                    COMMAND_LIMIT_S,
                    session=session,
                    verb=verb,
                    args=args,
                    by="user",
                )
            except Unavailable as error:
                if not service.closed.is_set():
                    raise
                if isinstance(error, Unreached) and verb in ACTS:
                    look = "'jupyter singularity ls'" if verb in MADE else "%singularity status"
                    raise Unreached(
                        f"the scheduler service was lost before it answered, so whether '{verb}' "
                        f"was done is not known; the session goes on: look with {look}",
                        session=live.record.session,
                    ) from None
        if verb == "status":
            return self.own_status(session)
        raise Unavailable(
            f"the scheduler service is away, so '{verb}' was not done; the session goes on as it "
            "is: try again in a moment",
            session=live.record.session,
        )

    async def _settled(self, live: LiveSession) -> dict[str, Any]:
        """Return what is true of its devices here. A device call goes on before its attach is
        written down, and that before the service knows, which is to say nothing older."""
        if live.record.phase is Phase.ATTACHING:
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                async with asyncio.timeout(SETTLE_S), live.lock:
                    pass
        return {"device_state": live.record.phase.value, "epoch": live.record.epoch}

    def own_status(self, session: str) -> dict[str, Any]:
        """The session as the agent alone knows it, in the words of the Session document."""
        live = self._node.session(session)
        record = live.record
        device_state = record.phase.value
        if live.waiting and record.phase in (Phase.NONE, Phase.PARKED):
            device_state = "waiting"
        process_state = "live" if record.alive else "completed"
        return {
            "id": record.session,
            "user": record.user,
            "kind": record.kind,
            "name": record.name,
            "tier": record.tier,
            "state": "running" if device_state == "held" else device_state,
            "process_state": process_state,
            "device_state": device_state,
            "reason": record.reason or "the scheduler service is away; the session goes on",
            "idle_since": None,
            "busy": bool(record.busy),
            "virtual_devices": record.virtual_devices,
            "devices": list(record.devices),
            "node": self._node.settings.node,
            "epoch": record.epoch,
            "waiting_since": None,
            "queue": None,
            "last_checkpoint": record.last_checkpoint,
            "held_back": False,
            "run": None,
            "exit_code": record.exit_code,
            "others_waiting": [],
            "service": "away",
        }


def _now() -> str:
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
