"""A kernel behind its relay that is dumped, ended and restored in new namespaces; no agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from singularity_proxy.capsule.images import image
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.wire.rpc import SyncPeer
from support.capsules import Place
from support.kernel_relay import Channels, RelayProcess, client, run, shim_command, wait_until


class Moving:
    """A kernel in a capsule, its relay, a client, and what moves it. Capsules are watched by an
    event loop in a thread of its own: the blocking client has the test's thread."""

    def __init__(self, place: Place, images: Path) -> None:
        self.place, self.images = place, images
        self.channels = Channels(place.folder)
        self.relay = RelayProcess(self.channels)
        self.capsule: NamespaceCapsule
        self.client: BlockingKernelClient
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def wait(self, job: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(60)

    def close(self) -> None:
        self.wait(self.place.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.relay.stop()

    def start(self) -> None:
        self.hand_over(self.channels.kernel)
        self.point()
        kernel = [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher"]
        kernel += ["-f", str(self.channels.kernel), "--HistoryManager.enabled=False"]
        self.capsule = self.wait(self.place.start(*shim_command(self.channels, *kernel)))

    def hand_over(self, path: Path) -> None:
        if self.place.uid != os.geteuid():
            os.chown(path, self.place.uid, self.place.uid)

    def point(self) -> None:
        """Write the tunnel file, for the capsule's user."""
        self.relay.point_shim_here()
        self.hand_over(self.channels.tunnel)

    def positions(self, side: str, lane: str) -> int:
        return int(self.relay.ask("positions")[side][lane])

    def suspend(self, name: str) -> None:
        """Freeze, dump, and leave nothing of the kernel."""
        self.capsule.freeze()
        self.relay.ask("away", away=True)
        image.dump(self.capsule, str(self.images / name))
        self.wait(self.capsule.end(0))

    def resume(self, name: str) -> None:
        """Bring the image back in namespaces of its own."""
        self.capsule = self.wait(self.place.prepare())
        image.restore(self.capsule, str(self.images / name))
        self.relay.ask("away", away=False)
        self.capsule.thaw()

    def connected(self) -> dict[str, Any]:
        """The relay's status once the capsule has joined."""
        wait_until(lambda: self.relay.ask("status")["connected"], why="it did not join")
        status: dict[str, Any] = self.relay.ask("status")
        return status


@contextlib.contextmanager
def moving(images: Path) -> Iterator[Moving]:
    with Place() as place:
        kernel = Moving(place, images)
        try:
            kernel.start()
            with client(kernel.channels) as found:
                kernel.client = found
                yield kernel
        finally:
            kernel.close()


@dataclass(frozen=True)
class Streamed:
    """What a client got of a stream of numbers, and of requests sent while the kernel was away."""

    count: int
    numbers: list[int]
    requests_in_order: bool
    """Each was carried out once, afterwards, in the order they were sent."""

    @property
    def missing(self) -> int:
        return len(set(range(self.count)) - set(self.numbers))

    @property
    def doubled(self) -> int:
        return sum(times - 1 for times in Counter(self.numbers).values())

    @property
    def in_order(self) -> bool:
        return self.numbers == sorted(self.numbers)


def stream_across(kernel: Moving, *, count: int, a_second: int, generations: int) -> Streamed:
    """A cell prints `count` messages while the kernel leaves and comes back `generations` times;
    each time five requests are sent while it is away."""
    found = kernel.client
    run(found, "import time; seen = []")
    busy = found.execute(
        "start = time.monotonic()\n"
        f"for i in range({count}):\n"
        "    print(i, flush=True)\n"
        f"    time.sleep(max(0, start + i / {a_second} - time.monotonic()))"
    )
    before = count // (3 * generations)
    for generation in range(generations):
        here = kernel.positions("outputs", "iopub")
        wait_until(lambda here=here: kernel.positions("outputs", "iopub") > here + before)
        name = f"g{generation}"
        kernel.suspend(name)
        with SyncPeer(kernel.channels.control) as agent:
            for n in range(5):
                found.execute(f"seen.append({5 * generation + n})")
            assert json.loads(agent._file.readline())["method"] == "wanted"
        kernel.resume(name)
    numbers: list[int] = []
    while True:
        message = found.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != busy:
            continue
        content = message["content"]
        if message["msg_type"] == "stream":
            numbers += [int(word) for word in content["text"].split()]
        elif content.get("execution_state") == "idle":
            break
    for _ in range(1 + 5 * generations):
        found.get_shell_msg(timeout=60)
    told = run(found, "print(seen)")[1]
    return Streamed(count, numbers, told == f"{list(range(5 * generations))}\n")
