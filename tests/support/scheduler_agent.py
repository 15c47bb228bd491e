"""A node agent for tests of the service: real RPC over a real unix socket, devices of paper.

It keeps the contract of the real agent (stored answers per (epoch, seq), leases, hello) and can be
told to misbehave. `PaperFleet` reaches it the way `LocalFleet` reaches the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import datetime, timezone
from typing import Any

from singularity_proxy.errors import (
    Conflict,
    NotFound,
    SingularityError,
    StaleEpoch,
    Unavailable,
)
from singularity_proxy.wire import rpc
from singularity_scheduler.agent.rights.leaders import Leaders
from singularity_scheduler.fleet.base import AgentLink, Callbacks

WHOLE = (
    "session.suspend",
    "session.checkpoint",
    "session.resume",
    "session.connection",
    "device.put_back",
    "session.own",
    "checkpoints.list",
    "checkpoints.delete",
    "checkpoints.prove",
)
"""What only agents with a store know."""


class PaperStore:
    """The checkpoint store that several agents share: (session, id) -> what they told of it."""

    def __init__(self) -> None:
        self.checkpoints: dict[tuple[str, str], dict[str, Any]] = {}
        self.heads: dict[str, int] = {}
        """session -> the newest epoch that has published"""

    def save(self, session: str, epoch: int, **told: Any) -> dict[str, Any]:
        """Publish a checkpoint; what the real store does by compare-and-swap of the head."""
        if epoch < self.heads.get(session, 0):
            raise StaleEpoch(f"session {session} has moved on to epoch {self.heads[session]}")
        self.heads[session] = epoch
        number = len(self.checkpoints) + 1
        reference = {
            "id": f"k{number:04}",
            "at": datetime.now(timezone.utc).isoformat(),
            "level": "process",
            "bytes": 1000 * number,
            "stored_bytes": 100 * number,
            "sent_bytes": 10 * number,
            "incarnation": 1,
            "reason": "",
            **told,
        }
        self.checkpoints[session, reference["id"]] = reference
        return reference


class PaperAgent:
    """`start()` it at a socket path; `sessions` is what it would tell in `hello`. With a `store` it
    can do with whole sessions what the real one can."""

    def __init__(
        self,
        path: str,
        devices: int = 2,
        node: str = "local",
        store: PaperStore | None = None,
    ) -> None:
        self.path = path
        self.node = node
        self.store = store
        self.image_trouble = ""
        self.faults: dict[str, str] = {}
        """Checkpoint -> why it does not come back."""
        self.instance = os.urandom(4).hex()
        self.devices = [
            {"id": f"cpu:{i}", "type": "cpu", "capacity_bytes": 4 << 30, "name": f"core {i}"}
            for i in range(devices)
        ]
        self.sessions: dict[str, dict[str, Any]] = {}
        self.answers: dict[tuple[str, str, int, int], Any] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.carried_out: list[tuple[str, str]] = []
        self.refuse: dict[str, SingularityError] = {}
        """method -> error of its next call"""
        self.hold: dict[str, asyncio.Event] = {}
        """method -> gate its calls wait at"""
        self.holds_leases = True
        self.version = self.cluster = ""
        self.logs: dict[str, bytes] = {}
        """session -> what it printed"""
        self.leaders = Leaders()
        self.peer: rpc.Peer | None = None
        self._server: asyncio.AbstractServer | None = None
        self._peers: set[rpc.Peer] = set()

    async def start(self) -> None:
        self._server = await rpc.serve(
            self.path,
            {
                name: self._handler(name)
                for name in (
                    "hello",
                    "identity",
                    "session.start",
                    "session.signal",
                    "session.end",
                    "session.log",
                    "session.peers",
                    "device.attach",
                    "device.park",
                    "device.resize",
                    "device.checkpoint",
                    "renew",
                    *(WHOLE if self.store else ()),
                )
            },
            allowed_uids={os.getuid()},
            on_connect=self._peers.add,
            on_close=self._peers.discard,
        )

    async def stop(self) -> None:
        if self._server:
            self._server.close()
            self._server = None
        for peer in list(self._peers):
            await peer.close()
        await asyncio.sleep(0)

    def event(self, session: str, type_: str, **data: Any) -> None:
        assert self.peer is not None
        self.peer.notify("event", session=session, type=type_, data=data)

    async def command(self, session: str, verb: str, **args: Any) -> Any:
        assert self.peer is not None
        return await self.peer.call(
            "session.command", session=session, verb=verb, args=args, by="user"
        )

    def need(self, session: str) -> None:
        self.sessions[session]["waiting"] = True
        self.event(session, "device.need")

    def busy(self, session: str, busy: bool) -> None:
        self.sessions[session]["busy"] = busy
        self.event(session, "activity", busy=busy, at="2026-01-01T00:00:00.000+00:00")

    def exit(self, session: str, code: int | None, reason: str = "") -> None:
        self.sessions[session] |= {"alive": False, "exit_code": code, "devices": []}
        self.event(session, "process.exited", exit_code=code, reason=reason)

    def _handler(self, method: str) -> rpc.Handler:
        async def serve(peer: rpc.Peer, params: dict[str, Any]) -> Any:
            self.calls.append((method, params))
            if gate := self.hold.get(method):
                await gate.wait()
            if error := self.refuse.pop(method, None):
                raise error
            if method == "hello":
                self.leaders.hello(peer, params)
                self.peer = peer
            else:
                self.leaders.check(peer)
            key = (method, params.get("session", ""), params.get("epoch", 0), params.get("seq", 0))
            if "seq" in params and key in self.answers:
                return self.answers[key]
            answer = getattr(self, "_" + method.replace(".", "_"))(params)
            self.carried_out.append((method, params.get("session", "")))
            if "seq" in params:
                self.answers[key] = answer
            return answer

        return serve

    def _hello(self, params: dict[str, Any]) -> Any:
        able: dict[str, Any] = {}
        if self.store is not None:
            trouble = self.image_trouble
            able["process_image"] = {"available": not trouble, "reason": trouble}
            able["store"] = {"url": "file:///paper", "reason": ""}
        return {
            "node": self.node,
            "instance": self.instance,
            "version": self.version,
            "cluster": self.cluster,
            "devices": self.devices,
            "capabilities": able,
            "sessions": list(self.sessions.values()),
        }

    def _identity(self, params: dict[str, Any]) -> Any:
        return {"uid": 70001, "gid": 70001, "mapped": True, "sentence": params["user"]}

    def _session_start(self, params: dict[str, Any]) -> Any:
        self.sessions[params["session"]] = {
            "session": params["session"],
            "user": params["user"],
            "kind": params["kind"],
            "tier": params["tier"],
            "name": params["name"],
            "virtual_devices": params["virtual_devices"],
            "alive": True,
            "pid": 4711,
            "exit_code": None,
            "epoch": 0,
            "devices": [],
            "saved": False,
            "waiting": False,
            "busy": None,
            "incarnation": 1,
        }
        return {"pid": 4711, "connection": params["launch"]["connection"], "env": {}}

    def _session_suspend(self, params: dict[str, Any]) -> Any:
        session = self._known(params)
        assert self.store is not None
        reference = self.store.save(
            params["session"],
            params["epoch"],
            name=params["name"],
            incarnation=session["incarnation"],
        )
        del self.sessions[params["session"]]
        ms = {"freeze": 1.0, "device": 2.0, "image": 3.0, "store": 4.0, "total": 1500.0}
        return {"checkpoint": reference, "ms": ms, "incarnation": session["incarnation"]}

    def _session_checkpoint(self, params: dict[str, Any]) -> Any:
        session = self._known(params)
        assert self.store is not None
        level = params["level"] or ("device" if self.image_trouble else "process")
        return self.store.save(
            params["session"],
            params["epoch"],
            name=params["name"],
            level=level,
            reason=self.image_trouble,
            incarnation=session["incarnation"],
        )

    def _device_put_back(self, params: dict[str, Any]) -> Any:
        assert self.store is not None
        self._known(params)
        stored = self.store.checkpoints[params["session"], params["checkpoint"]]
        before = None
        if not params["discard"]:
            asked = {**params, "name": "", "level": "device"}
            before = self._session_checkpoint(asked)
        loss = {"level": "device", "back": ["the contents of 2 tensors (8 bytes)"]}
        loss |= {"lost": ["Python variables, which are as they are now"], "hashes_checked": 3}
        return {"loss": {**loss, "checkpoint": stored["id"]}, "before": before}

    def _session_resume(self, params: dict[str, Any]) -> Any:
        assert self.store is not None
        key = (params["from_session"], params["checkpoint"])
        if key not in self.store.checkpoints:
            raise NotFound(f"there is no checkpoint {key[1]}")
        reference = self.store.checkpoints[key]
        self.store.heads[params["session"]] = params["epoch"]
        self._session_start({**params, "launch": {"connection": params["connection"]}})
        self.sessions[params["session"]] |= {
            "epoch": params["epoch"],
            "saved": True,
            "incarnation": params["incarnation"],
        }
        loss = {
            "level": reference["level"],
            "back": ["its process", "2 devices' state"],
            "lost": [],
            "rolled_back": params["incarnation"] != reference["incarnation"],
            "hashes_checked": 12,
            "checkpoint": reference["id"],
        }
        return {"pid": 4712, "loss": loss}

    def _session_connection(self, params: dict[str, Any]) -> Any:
        return {
            "connection": {"tunnel": {"secret": f"of incarnation {params.get('incarnation')}"}},
            "clients": {"shell_port": 5001, "key": "connection-secret"},
        }

    def _session_own(self, params: dict[str, Any]) -> Any:
        return {}

    def _checkpoints_list(self, params: dict[str, Any]) -> Any:
        assert self.store is not None
        kept = self.store.checkpoints.items()
        return [told for (sid, _), told in kept if sid == params["session"]]

    def _checkpoints_delete(self, params: dict[str, Any]) -> Any:
        assert self.store is not None
        if self.store.checkpoints.pop((params["session"], params["id"]), None) is None:
            raise NotFound(f"there is no checkpoint {params['id']}")
        return {}

    def _checkpoints_prove(self, params: dict[str, Any]) -> Any:
        assert self.store is not None
        if (params["session"], params["id"]) not in self.store.checkpoints:
            raise NotFound(f"there is no checkpoint {params['id']}")
        why = self.faults.get(params["id"], "")
        return {"proved": not why, "why": why, "ms": 12.5}

    def _session_signal(self, params: dict[str, Any]) -> Any:
        self._known(params)
        return {}

    def _session_peers(self, params: dict[str, Any]) -> Any:
        self._known(params)
        return {}

    def _session_end(self, params: dict[str, Any]) -> Any:
        session = self.sessions.pop(params["session"], None)
        return {"exit_code": None if session is None else session["exit_code"]}

    def _session_log(self, params: dict[str, Any]) -> Any:
        try:
            printed = self.logs[params["session"]]
        except KeyError:
            raise NotFound(f"no log of session {params['session']}") from None
        start = min(params["offset"], len(printed))
        part = printed[start : start + params["limit"]]
        return {
            "text": part.decode(),
            "offset": start,
            "next_offset": start + len(part),
            "size": len(printed),
        }

    def _device_attach(self, params: dict[str, Any]) -> Any:
        session = self._known(params)
        taken = {d for s in self.sessions.values() if s is not session for d in s["devices"]}
        if twice := taken & set(params["devices"]):
            raise Conflict(f"{twice} is attached twice")
        session |= {
            "devices": params["devices"],
            "epoch": params["epoch"],
            "saved": True,
            "waiting": False,
        }
        return {"ms": 1.0}

    def _device_resize(self, params: dict[str, Any]) -> Any:
        before = list(self._known(params)["devices"])
        self._device_attach(params)
        moved = [v for v, device in enumerate(params["devices"]) if device != before[v]]
        return {"ms": 1.0, "moved": moved}

    def _device_park(self, params: dict[str, Any]) -> Any:
        self._known(params)["devices"] = []
        return {"bytes": 1024, "ms": 2.0}

    def _device_checkpoint(self, params: dict[str, Any]) -> Any:
        self._known(params)
        at = "2026-01-02T03:04:05.000+00:00"
        return {"id": f"c-{params['name']}", "at": at, "bytes": 77, "level": "device"}

    def _renew(self, params: dict[str, Any]) -> Any:
        asked = params["leases"]
        held = [
            lease
            for lease in asked
            if self.holds_leases
            and (s := self.sessions.get(lease["session"]))
            and s["devices"]
            and s["epoch"] == lease["epoch"]
        ]
        gone = [x["session"] for x in asked if x["session"] not in self.sessions]
        return {"held": held, "gone": gone}

    def _known(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.sessions[params["session"]]
        except KeyError:
            session = params["session"]
            said = f"this node has no session '{session}'"
            raise NotFound(said, session=session, missing="session") from None


class PaperFleet:
    """Reaches the agents at `paths`, again and again when they go away."""

    paths: tuple[str, ...] = ()

    def __init__(self, parent: Any = None) -> None:
        self._callbacks = Callbacks()
        self._links = {path: AgentLink(self._callbacks) for path in self.paths}
        self._tasks: list[asyncio.Task[None]] = []

    def on_event(self, callback: Any) -> None:
        self._callbacks.event = callback

    def on_command(self, callback: Any) -> None:
        self._callbacks.command = callback

    def on_connection(self, callback: Any) -> None:
        self._callbacks.connection = callback

    def lead(self, ledger: str, epoch: int) -> None:
        self._callbacks.lead(ledger, epoch)

    async def start(self) -> None:
        self._tasks = [asyncio.ensure_future(self._stay_connected(p)) for p in self._links]

    async def _stay_connected(self, path: str) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                await self._links[path].connect(path)
                await self._links[path].wait_closed()
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links.values():
            await link.close()

    async def hello(self) -> list[Any]:
        async def ask(link: AgentLink) -> Any:
            try:
                return await link.call("hello", 10.0, {})
            except Unavailable:
                return None

        told = await asyncio.gather(*map(ask, self._links.values()))
        return [hello for hello in told if hello is not None]

    async def call(
        self, node: str, method: str, timeout: float | None = 60.0, **params: Any
    ) -> Any:
        link = next((x for x in self._links.values() if x.node == node), None)
        if link is None:
            raise Unavailable(f"node {node} is not connected")
        return await link.call(method, timeout, params)
