"""The same device proxy on a real GPU: operators, park, kill, memory."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.wire.rpc import SyncPeer
from support import proxy_device as w
from support.proxy_device import Device, RingClient, T, Value

pytestmark = pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs an NVIDIA GPU")


class Process:
    """A device proxy on cuda:0. Started for real: a forked one must not have touched CUDA."""

    def __init__(self, folder: Path, capacity: int) -> None:
        path = folder / f"{time.monotonic_ns()}.sock"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "singularity_proxy.device", "--socket", str(path)]
        )
        while not path.exists():
            assert self.process.poll() is None
            time.sleep(0.05)
        self.peer = SyncPeer(path, timeout=100)
        self.peer.call(
            "bind",
            session="0123456789ab",
            uid=os.getuid(),
            gid=os.getgid(),
            device="cuda:0",
            capacity_bytes=capacity,
            threads=1,
            epoch=1,
        )

    def attach(self, client: RingClient) -> dict[str, Any]:
        answer: dict[str, Any] = self.peer.call(
            "attach",
            ring_id="ring",
            path=str(client.path),
            state_prefix=str(client.path.with_suffix("")),
            journal_bytes=1 << 20,
            epoch=1,
        )
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.peer.close()


@pytest.fixture
def start(short_dir: Path) -> Iterator[Any]:
    made: list[Process] = []

    def new(capacity: int = 0) -> Process:
        made.append(Process(short_dir, capacity))
        return made[-1]

    yield new
    for one in made:
        one.close()


@pytest.fixture
def ring() -> Iterator[RingClient]:
    folder = Path(tempfile.mkdtemp(prefix="singularity-test-", dir="/dev/shm"))
    client = w.make_ring(folder / "ring.ring")
    yield client
    client.close()
    shutil.rmtree(folder)


def fill(client: RingClient) -> None:
    client.record(w.SEED, struct.pack("<Q", 3))
    client.op("randn", [1 << 16], w.FLOAT, None, Device(), None, base=1)
    client.call("mm", T(1, (256, 256)), T(1, (256, 256)), base=2)
    client.op("native_dropout", T(2, (256, 256)), 0.5, True, base=3)


def contents(client: RingClient) -> list[bytes]:
    return [client.read(i, 1 << 18) for i in (1, 2, 3)] + [client.ask(w.GET_RNG).payload]


def test_a_parked_state_comes_back_bitwise(start: Any, ring: RingClient) -> None:
    first = start()
    first.attach(ring)
    assert ring.word(88, bits=32) == 1
    fill(ring)
    before = contents(ring)
    first.peer.call("park")
    assert first.process.wait(100) == 0
    second = start()
    second.attach(ring)
    assert contents(ring) == before


def test_a_killed_proxy_loses_nothing(start: Any, ring: RingClient) -> None:
    first = start()
    first.attach(ring)
    fill(ring)
    before = contents(ring)
    ring.op("uniform_", T(1, (1 << 16,)), 0.0, 1.0, None, flags=w.NO_OUTPUTS)
    first.process.kill()
    first.process.wait()
    second = start()
    second.attach(ring)
    assert contents(ring)[1:3] == before[1:3]
    ring.record(w.SEED, struct.pack("<Q", 3))
    ring.op("randn", [1 << 16], w.FLOAT, None, Device(), None, base=5)
    assert ring.read(5, 1 << 18) == before[0]


def test_the_capacity_is_that_of_the_session(start: Any, ring: RingClient) -> None:
    proxy = start(capacity=1 << 30)
    proxy.attach(ring)
    reply = ring.ask(w.ALLOCATE, struct.pack("<Q", 2 << 30), base=1)
    assert reply.status == w.OUT_OF_MEMORY
    assert reply.text.startswith("CUDA out of memory. Tried to allocate 2.00 GiB.")
    ring.allocate(1, 1 << 20)
    ring.sync()
    assert ring.word(104) >= 1 << 20


def test_events_wait_for_the_device(start: Any, ring: RingClient) -> None:
    proxy = start()
    proxy.attach(ring)
    ring.op("randn", [1 << 24], w.FLOAT, None, Device(), None, base=1)
    ring.sync()
    ring.record(w.EVENT_RECORD, base=1)
    for _ in range(20):
        ring.op("mul_.Scalar", T(1, (1 << 24,)), Value(1.0), flags=w.NO_OUTPUTS)
    ring.record(w.EVENT_RECORD, base=2)
    (ms,) = struct.unpack("<d", ring.ask(w.EVENT_TIME, struct.pack("<Q", 2), base=1).payload)
    assert ms > 0.1  # 20 passes over 64 MiB


def test_a_proxy_that_is_held_goes_on_where_it_was(start: Any, ring: RingClient) -> None:
    proxy = start()
    proxy.attach(ring)
    fill(ring)
    before = contents(ring)
    assert proxy.peer.call("hold")["bytes"] >= 3 << 18
    assert ring.state == 0
    assert proxy.peer.call("release", epoch=2)["rings"] == ["ring"]
    assert contents(ring) == before


@pytest.mark.timeout(1600)
def test_the_runner_finds_nothing_wrong(tmp_path: Path) -> None:
    """`./dev gpu --quick`: coverage, parity, recovery, speed, park by copy and by the driver."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "singularity_proxy.gpu", "--quick", "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text())["counts"]["failed"] == 0
