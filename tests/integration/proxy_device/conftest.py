"""Device proxies and rings of one test; both are gone after it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.proxy_device import Proxies, Proxy, RingClient, make_ring
from support.proxy_zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Where device proxies come from."""
    made = Zygote()
    yield made
    made.close()


@pytest.fixture
def proxies(short_dir: Path, zygote: Zygote) -> Iterator[Proxies]:
    """Starts device proxies; all of them are ended after the test."""
    made = Proxies(short_dir, zygote)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="m"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def shared(shared_dir: Path, zygote: Zygote) -> Iterator[Proxy]:
    """One bound proxy (256 MiB) for the tests of a module that do not end it."""
    made = Proxies(shared_dir, zygote)
    proxy = made.bound(capacity=256 << 20)
    yield proxy
    made.close()


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder in /dev/shm, as the agent makes one per session."""
    path = Path(tempfile.mkdtemp(prefix="singularity-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def ring(shm: Path) -> Iterator[RingClient]:
    """A ring nobody serves yet."""
    client = make_ring(shm / "ring.ring")
    yield client
    client.close()


@pytest.fixture
def served(shared: Proxy, ring: RingClient) -> Iterator[RingClient]:
    """A ring served by the module's proxy, without a journal."""
    ring_id = f"{ring.path.parent.name}"
    shared.attach(ring, ring_id=ring_id)
    yield ring
    shared.call("close_ring", ring_id=ring_id)


@pytest.fixture
def ring_two(shared: Proxy, shm: Path) -> Iterator[RingClient]:
    """A second ring, served by the module's proxy."""
    client = make_ring(shm / "two.ring", virtual_device=1)
    ring_id = f"{shm.name}-two"
    shared.attach(client, ring_id=ring_id)
    yield client
    shared.call("close_ring", ring_id=ring_id)
    client.close()


@pytest.fixture
def small_ring(shm: Path) -> Iterator[RingClient]:
    """A ring with queues of 16 and 4 KiB, not served."""
    client = make_ring(shm / "small.ring", request_bytes=16 << 10, reply_bytes=4096)
    yield client
    client.close()


@pytest.fixture
def tiny(short_dir: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    path = short_dir / "tiny"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(path)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)
