"""A device proxy that is fed lies: see support.proxy_fuzz. The seed stands in each test's name."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import matrix, proxy_fuzz, sanitizer
from support.proxy_device import Proxies, Proxy
from support.proxy_fuzz import Fuzz, Program, Record

SECONDS = 45.0 if matrix.is_full() else 5.0
SEEDS = [matrix.seed() + i for i in range(4 if matrix.is_full() else 1)]


@pytest.fixture(scope="module")
def corpus() -> list[Record]:
    """What real code sent."""
    found = proxy_fuzz.record()
    assert len(found) > 300
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="singularity-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def check(fuzz: Fuzz) -> None:
    fuzz.run(SECONDS)
    for what in ("mutated", "ok", "refused", "broken"):
        assert fuzz.counts[what] > 0, fuzz.counts


@pytest.mark.timeout(60 + 4 * SECONDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_lies_break_nothing_but_their_own_ring(
    proxies: Proxies, corpus: list[Record], folder: Path, seed: int
) -> None:
    check(Fuzz(lambda: proxies.bound(capacity=32 << 20), corpus, folder, seed))


@pytest.mark.timeout(sanitizer.BUILD_SECONDS + 4 * SECONDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_lies_touch_no_memory_they_should_not(
    short_dir: Path, corpus: list[Record], folder: Path, seed: int
) -> None:
    """The same with AddressSanitizer: one wrong access ends the proxy, and with it this test."""
    started: list[Program] = []

    def start() -> Proxy:
        proxy = Program(short_dir, sanitizer.environment())
        started.append(proxy)
        proxy.bind(capacity=32 << 20)
        return proxy

    try:
        check(Fuzz(start, corpus, folder, seed))
    finally:
        for proxy in started:
            proxy.close()
