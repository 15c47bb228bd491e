"""Stands in for a device proxy in tests of the agent: same calls, no torch, no computing.

Its "device memory" of a ring is a number that a worker adds to: record n is the number n in the
request queue. Attach reads `<prefix>.snap`, park writes it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import time
from pathlib import Path
from typing import Any

from singularity_proxy.errors import NoSpace, SingularityError
from singularity_proxy.wire import rpc
from singularity_proxy.wire.ring import RingFile, RingState

WORK = Path()


def write(path: str, data: bytes) -> None:
    with open(path + ".tmp", "wb") as file:
        file.write(data)
    os.replace(path + ".tmp", path)


class Double:
    def __init__(self) -> None:
        self.bound: dict[str, Any] | None = None
        self.rings: dict[str, tuple[RingFile, str]] = {}
        self.heart: asyncio.Task[None] | None = None

    async def _beat(self) -> None:
        """Beats like a proxy's heart, but not while the file hush-PID is in the agent's work
        folder."""
        hush = WORK / f"hush-{os.getpid()}"
        while True:
            for ring, _ in self.rings.values():
                if not hush.exists():
                    ring._put64("heartbeat_ns", time.monotonic_ns())
            await asyncio.sleep(0.1)

    async def bind(self, _: rpc.Peer, p: dict[str, Any]) -> Any:
        if self.bound:
            raise SingularityError("bound twice")
        self.bound = p
        if os.geteuid() == 0 and p["uid"] != 0:
            os.setresgid(p["gid"], p["gid"], p["gid"])
            os.setresuid(p["uid"], p["uid"], p["uid"])
        return {"pid": os.getpid()}

    async def attach(self, _: rpc.Peer, p: dict[str, Any]) -> Any:
        prefix = Path(p["state_prefix"])
        if prefix.with_suffix(".die").exists():
            os._exit(9)
        ring = RingFile.open(p["path"])
        snap = prefix.with_suffix(".snap")
        restored = len(snap.read_bytes()) if snap.exists() else 0
        ring._put32("generation", ring.read().generation + 1)
        ring._put32("worker_waiting", 0)
        ring.set_state(RingState.ATTACHED)
        self.rings[p["ring_id"]] = (ring, p["state_prefix"])
        if self.heart is None:
            self.heart = asyncio.ensure_future(self._beat())
        return {"restored_bytes": restored, "replayed_records": 0, "ms": 0.1}

    async def close_ring(self, _: rpc.Peer, p: dict[str, Any]) -> Any:
        self.rings.pop(p["ring_id"])[0].close()
        return {}

    async def park(self, _: rpc.Peer, p: dict[str, Any]) -> Any:
        if (WORK / f"nopark-{os.getpid()}").exists():
            raise SingularityError("CUDA error: the device is gone")
        total = 0
        for ring, prefix in self.rings.values():
            state = struct.pack("<Q", ring.read().done_seq)
            try:
                write(prefix + ".snap", state)
            except OSError as error:
                raise NoSpace(f"the state could not be written ({error.strerror})") from None
            total += len(state)
        for ring, _prefix in self.rings.values():
            ring.set_state(RingState.DETACHED)
        asyncio.get_running_loop().call_later(0.05, os._exit, 0)
        return {"bytes": total, "ms": 0.1, "rings": len(self.rings)}

    async def park_rings(self, _: rpc.Peer, p: dict[str, Any]) -> Any:
        if p["rings"] and (WORK / f"nopark-{os.getpid()}").exists():
            raise SingularityError("CUDA error: the device is gone")
        if (WORK / f"slow-{os.getpid()}").exists():
            (WORK / f"parking-{os.getpid()}").touch()
            await asyncio.sleep(1.0)
        for ring_id in p["rings"]:
            ring, prefix = self.rings.pop(ring_id)
            write(prefix + ".snap", struct.pack("<Q", ring.read().done_seq))
            ring.set_state(RingState.DETACHED)
        return {"bytes": 8 * len(p["rings"]), "ms": 0.1, "rings": p["rings"]}

    async def checkpoint(self, _: rpc.Peer, p: dict[str, Any]) -> Any:
        for ring_id in self.rings:
            write(os.path.join(p["directory"], ring_id + ".snap"), b"12345678")
        return {"bytes": 8 * len(self.rings), "ms": 0.1, "files": {}}

    async def stats(self, _: rpc.Peer, p: dict[str, Any]) -> Any:
        grouped = (WORK / "groups.json").exists()
        return {"rings": {ring_id: {"groups": int(grouped)} for ring_id in self.rings}}

    def _ranks(self) -> dict[str, Any]:
        """The ranks that it serves, by the groups in groups.json: {name: virtual devices}. They
        stand unless the file apart is there: then those of each proxy are somewhere else."""
        groups = json.loads((WORK / "groups.json").read_text())
        apart = (WORK / "apart").exists()
        mine = {ring.read().virtual_device for ring, _ in self.rings.values()}
        at = {
            name: {rank: v for rank, v in enumerate(members) if v in mine}
            for name, members in groups.items()
        }
        return {
            "groups": {n: {r: v if apart else 7 for r, v in who.items()} for n, who in at.items()},
            "devices": at,
            "names": {name: name for name in at},
            "open": [],
            "held": True,
        }

    async def barrier_ask(self, _: rpc.Peer, p: dict[str, Any]) -> Any:
        return self._ranks()

    async def barrier_hold(self, _: rpc.Peer, p: dict[str, Any]) -> Any:
        (WORK / f"stands-{os.getpid()}").touch()
        return self._ranks()

    async def barrier_release(self, _: rpc.Peer, p: dict[str, Any]) -> Any:
        (WORK / f"stands-{os.getpid()}").unlink(missing_ok=True)
        return {}

    async def exit(self, _: rpc.Peer, p: dict[str, Any]) -> Any:
        asyncio.get_running_loop().call_later(0.01, os._exit, 0)
        return {}


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    path = parser.parse_args().socket
    global WORK
    WORK = Path(path).parents[2] / "work"  # of the test's `AgentBox`
    double = Double()
    names = ["bind", "attach", "close_ring", "park", "park_rings", "checkpoint", "stats", "exit"]
    if not (WORK / "old").exists():
        names += ["barrier_ask", "barrier_hold", "barrier_release"]
    await rpc.serve(path, {n: getattr(double, n) for n in names}, allowed_uids={0, os.geteuid()})
    await asyncio.Event().wait()


asyncio.run(main())
