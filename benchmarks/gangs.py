"""Sessions that run one program together, each with its bridge, as node agents would start them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any

from singularity_proxy.elastic.bridge.__main__ import KEY
from singularity_proxy.elastic.bridge.rendezvous import FILE, kept
from singularity_proxy.elastic.coordinator import Barrier, Cut
from singularity_proxy.standalone import Standalone


class Part(Standalone):
    """One of them. `settle` of the gang tells it where the others are."""

    def __init__(self, number: int, parts: int, key: str, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.number, self.parts, self.key = number, parts, key
        self.ports: dict[str, int] = {}
        self.bridge: subprocess.Popen[bytes] | None = None
        self._kept = contextlib.ExitStack()

    def __enter__(self) -> Part:
        super().__enter__()
        self.start_bridge()
        self._kept.enter_context(kept(self.env()))
        return self

    def __exit__(self, *exc: object) -> None:
        self._kept.close()
        self.end_bridge()
        super().__exit__(*exc)

    def start_bridge(self) -> None:
        """Also in the place of one that was killed."""
        port_file = self.folder / "bridge.json"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "singularity_proxy.elastic.bridge"]
        command += ["--folder", str(self.shm), "--listen", "127.0.0.1"]
        command += ["--number", str(self.number), "--parts", str(self.parts)]
        command += ["--port-file", str(port_file), "--peers", str(self.folder / "peers.json")]
        command += ["--rendezvous", str(self.folder / FILE)]
        for name, port in self.ports.items():
            command += ["--" + name.replace("_", "-"), str(port)]
        with (self.folder / "bridge.log").open("ab") as log:
            self.bridge = subprocess.Popen(command, env={**os.environ, KEY: self.key}, stderr=log)
        until = time.monotonic() + 60
        while not port_file.exists():
            assert self.bridge.poll() is None, self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.02)
        self.ports = json.loads(port_file.read_text())

    def end_bridge(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        assert self.bridge is not None
        self.bridge.send_signal(number)
        return self.bridge.wait(20)

    def said(self) -> str:
        """What its bridges said."""
        return (self.folder / "bridge.log").read_text()

    def meet(self, where: dict[str, str]) -> None:
        beside = self.folder / "peers.tmp"
        beside.write_text(json.dumps(where))
        beside.replace(self.folder / "peers.json")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['port']}"

    def env(self) -> dict[str, str]:
        return {
            **super().env(),
            "SINGULARITY_GANG": f"{self.number}/{self.parts}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.ports["master_port"]),
        }


class Stops:
    """A device proxy of a part, for a `Barrier` in another event loop than the part's."""

    def __init__(self, part: Part, proxy: Any) -> None:
        self._part, self._proxy = part, proxy

    async def barrier_ask(self) -> Mapping[str, Any]:
        return await self._there(self._proxy.barrier_ask())

    async def barrier_hold(
        self, targets: Mapping[str, int], deadline_s: float, grace_s: float
    ) -> Mapping[str, Any]:
        return await self._there(self._proxy.barrier_hold(targets, deadline_s, grace_s))

    async def barrier_release(self) -> Mapping[str, Any]:
        return await self._there(self._proxy.barrier_release())

    async def _there(self, work: Coroutine[Any, Any, Mapping[str, Any]]) -> Mapping[str, Any]:
        loop = self._part._loop
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


def barrier(parts: Sequence[Part], deadline_s: float) -> Cut:
    """Stop all ranks of all parts at a common place, as the agents of their nodes do it together,
    and let them go on at once. Raises BarrierFailed."""

    async def stand() -> Cut:
        proxies = [Stops(part, proxy) for part in parts for proxy in part._living()]
        async with Barrier(proxies) as one:
            return await one.reach(deadline_s)

    return asyncio.run_coroutine_threadsafe(stand(), parts[0]._loop).result()


class Gang:
    """`with Gang(2, devices=2) as parts:` two sessions with two virtual devices each."""

    def __init__(self, parts: int, **options: object) -> None:
        key = secrets.token_hex(32)
        self.parts = [Part(number, parts, key, **options) for number in range(parts)]

    def __enter__(self) -> list[Part]:
        for part in self.parts:
            part.__enter__()
        self.settle()
        return self.parts

    def settle(self) -> None:
        """Everybody learns where everybody is."""
        where = {str(part.number): part.address for part in self.parts}
        for part in self.parts:
            part.meet(where)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for part in reversed(self.parts):
            if error is not None:
                print(f"bridge {part.number}: {part.said()}", file=sys.stderr)
            part.__exit__(kind, error, where)
