"""Process images that are proved beside the tree they are of, with the real CRIU."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from singularity_proxy.capsule.tree import is_stopped, namespace_of
from support.capsules import Places, needs_criu
from support.proofs import BUSY, Taken, fingerprint

pytestmark = [needs_criu, pytest.mark.asyncio]


async def test_a_proof_touches_nothing_of_the_tree_that_it_is_of(tmp_path: Path) -> None:
    async with Places() as place:
        running = await place.python(BUSY)
        await place.logged("ready")
        taken = Taken(place, tmp_path / "taken")
        await taken.take(running)
        before = fingerprint(place.home), fingerprint(place.folder)
        assert {"counter", "fifo", "named"} <= {p.name for p in place.home.iterdir()}
        capsule = await taken.sealed()
        await taken.prove(capsule)
        assert capsule.frozen
        assert all(is_stopped(m.identity.pid) for m in capsule.members())
        for kind in ("net", "ipc", "mnt", "pid"):
            assert namespace_of(capsule.init.pid, kind) != namespace_of(os.getpid(), kind)
        assert (fingerprint(place.home), fingerprint(place.folder)) == before
        await capsule.end(0)
        assert (fingerprint(place.home), fingerprint(place.folder)) == before
        lines = (place.home / "counter").read_text().splitlines()
        await asyncio.to_thread(running.thaw)
        await place.until(
            lambda: len((place.home / "counter").read_text().splitlines()) > len(lines) + 20
        )
        now = (place.home / "counter").read_text().splitlines()
        assert now == [str(n + 1) for n in range(len(now))]
