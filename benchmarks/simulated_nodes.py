"""Many node agents in one process that run nothing and keep the whole contract with the service.

Each has a socket of its own, found like a real agent's: by the file `agent.json` in its state
folder, so the service reaches them through the unchanged `LocalFleet`. They say hello, answer a
command that is repeated with its first answer, count leases from when a renewal arrives and fence
themselves when one lapses, refuse the commands of an older leader, and tell what a session does:
its process lives, and, by the script, it needs a device or ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.errors import NotFound, StaleEpoch
from singularity_proxy.wire import rpc
from singularity_scheduler.agent.rights.leaders import KEY, Leaders
from singularity_scheduler.agent.rights.leases import LeaseTable, boot_clock

Json = dict[str, Any]


class SimulatedNode:
    """One agent. `started` is called with the name of each session whose start command came for
    the first time, before it is answered."""

    def __init__(
        self, folder: Path, sockets: Path, name: str, devices: int, started: Callable[[str], None]
    ) -> None:
        self.name = name
        self.sessions: dict[str, Json] = {}
        self.leases = LeaseTable()
        self.refused: list[str] = []
        """Commands that came from a service that leads no more."""
        self.obeyed: list[tuple[int, str]] = []
        """(epoch of the leader, command), as they came."""
        self._path = str(sockets / f"{name}.sock")
        self._folder = folder / name
        self._devices = [
            {"id": f"cpu:{n}", "type": "cpu", "capacity_bytes": 4 << 30, "name": f"core {n}"}
            for n in range(devices)
        ]
        self._started = started
        self._answers: dict[tuple[str, str, int, int], Any] = {}
        self._leaders = Leaders()
        self._service: rpc.Peer | None = None
        self._server: asyncio.AbstractServer | None = None
        self._peers: set[rpc.Peer] = set()

    async def start(self) -> None:
        names = ("hello", "session.start", "session.end", "device.attach", "device.park", "renew")
        self._server = await rpc.serve(
            self._path,
            {name: self._handler(name) for name in names},
            allowed_uids={os.getuid()},
            on_connect=self._peers.add,
            on_close=self._peers.discard,
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        told = {"socket": self._path, "process": ProcessIdentity.of(os.getpid()).to_json()}
        (self._folder / "agent.json").write_text(json.dumps(told))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers):
            await peer.close()

    def tell(self, session: str, type_: str, **data: Any) -> None:
        """An event of a session, to the service of now."""
        if self._service is not None:
            self._service.notify("event", session=session, type=type_, data=data)

    def need(self, session: str) -> None:
        """A worker of the session waits for its devices."""
        self.sessions[session]["waiting"] = True
        self.tell(session, "device.need")

    # -- the commands ---------------------------------------------------------------------------

    def _handler(self, method: str) -> rpc.Handler:
        act = getattr(self, "_" + method.replace(".", "_"))

        async def serve(peer: rpc.Peer, asked: Json) -> Any:
            try:
                if method == "hello":
                    self._leaders.hello(peer, asked)
                    self._service = peer
                else:
                    self._leaders.check(peer)
            except StaleEpoch:
                self.refused.append(method)
                raise
            self.obeyed.append((peer.data[KEY][1], method))
            self._fence()
            if "seq" not in asked:
                return act(asked)
            key = (method, asked["session"], asked["epoch"], asked["seq"])
            if key not in self._answers:
                self._answers[key] = act(asked)
            return self._answers[key]

        return serve

    def _fence(self) -> None:
        for sid in self.leases.lapse(boot_clock()):
            self.sessions[sid]["devices"] = []
            self.tell(sid, "lease.lapsed")

    def _hello(self, _: Json) -> Json:
        return {
            "node": self.name,
            "instance": f"simulated-{os.getpid()}",
            "sent_at": boot_clock(),
            "devices": self._devices,
            "capabilities": {},
            "sessions": list(self.sessions.values()),
        }

    def _session_start(self, asked: Json) -> Json:
        sid = asked["session"]
        self._started(asked["name"])
        kept = ("session", "user", "kind", "tier", "name", "virtual_devices")
        self.sessions[sid] = {
            **{key: asked[key] for key in kept},
            **{"alive": True, "pid": os.getpid(), "exit_code": None, "epoch": 0, "devices": []},
            **{"saved": False, "waiting": False, "busy": None},
        }
        self.tell(sid, "process.live", pid=os.getpid())
        return {"pid": os.getpid(), "connection": asked["launch"].get("connection"), "env": {}}

    def _session_end(self, asked: Json) -> Json:
        self.leases.release(asked["session"])
        self.sessions.pop(asked["session"], None)
        return {"exit_code": 0}

    def _device_attach(self, asked: Json) -> Json:
        began = time.monotonic()
        session = self._known(asked)
        self.leases.grant(asked["session"], asked["epoch"], asked["ttl_s"], boot_clock())
        session |= {"devices": asked["devices"], "epoch": asked["epoch"]}
        session |= {"saved": True, "waiting": False}
        return {"ms": 1e3 * (time.monotonic() - began)}

    def _device_park(self, asked: Json) -> Json:
        self._known(asked)["devices"] = []
        self.leases.release(asked["session"])
        return {"bytes": 1024, "ms": 1.0}

    def _renew(self, asked: Json) -> Json:
        wanted = [(lease["session"], lease["epoch"]) for lease in asked["leases"]]
        held = set(self.leases.renew(wanted, asked["ttl_s"], boot_clock()))
        return {
            "held": [{"session": s, "epoch": e} for s, e in wanted if s in held],
            "gone": [s for s, _ in wanted if s not in self.sessions],
            "sent_at": boot_clock(),
        }

    def _known(self, asked: Json) -> Json:
        try:
            return self.sessions[asked["session"]]
        except KeyError:
            raise NotFound(f"there is no session {asked['session']} on this node") from None
