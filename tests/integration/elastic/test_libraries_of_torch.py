"""torch's own libraries for several ranks (FSDP2, ZeRO, distributed checkpoints, DDP's rarer ways)
on 4, 2 and 1 physical devices: the same bits, and what gloo computes natively."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import LayoutRefused
from singularity_proxy.standalone import Standalone
from support import library_ranks

from benchmarks.jobs import Job, numbers

pytestmark = pytest.mark.timeout(600)

FILE = Path(library_ranks.__file__)
PROGRAMS = ("fsdp2", "zero", "accumulate", "stored")
ALL = ",".join(PROGRAMS)
HYBRID = ("hybrid", "--steps", "12")

Found = list[dict[str, Any]]
"""What a program found in each rank."""


def session(physical: int) -> Standalone:
    return Standalone(devices=4, physical=physical, threads=1, spares=3)


def result(job: Job, program: str) -> Found:
    return [rank[program] for rank in job.result(300)]


@pytest.fixture(scope="module")
def run() -> Callable[[int], dict[str, Found]]:
    """All programs, one after another, on so many devices; 0: natively with gloo."""

    @cache
    def programs(physical: int) -> dict[str, Found]:
        if physical:
            with session(physical) as one:
                ranks = Job(one, ALL, file=FILE).result(400)
        else:
            ranks = Job(None, ALL, file=FILE).result(400)
        return {name: [rank[name] for rank in ranks] for name in PROGRAMS}

    return programs


Run = Callable[[int], dict[str, Found]]


@pytest.mark.parametrize("physical", [2, 1])
@pytest.mark.parametrize("program", PROGRAMS)
def test_fewer_devices_give_the_same_bits(program: str, physical: int, run: Run) -> None:
    assert numbers(run(physical)[program]) == numbers(run(4)[program])


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_what_gloo_computes(program: str, run: Run) -> None:
    for ours, theirs in zip(run(4)[program], run(0)[program], strict=True):
        assert ours["losses"][0] == theirs["losses"][0]  # before the first reduction
        for a, b in zip(ours["losses"], theirs["losses"], strict=True):
            assert float.fromhex(a) == pytest.approx(float.fromhex(b), rel=1e-4)
        assert ours["total"] == pytest.approx(theirs["total"], rel=1e-3, abs=1e-3)


def test_the_number_of_devices_changes_meanwhile(run: Run) -> None:
    """Twice in each program, in the middle of their steps."""
    with session(4) as one:
        job = Job(one, ALL, file=FILE)
        for step, count in zip(range(1, 25, 3), (1, 2, 4, 1, 4, 2, 1, 4), strict=True):
            job.wait_for_step(step)
            assert len(set(one.resize(count)["devices"])) == count
        ranks = job.result(400)
    for program in PROGRAMS:
        assert numbers([rank[program] for rank in ranks]) == numbers(run(4)[program]), program


def test_shards_of_a_hybrid_keep_devices_of_their_own() -> None:
    """Two replicas of two shards: replicas may share a device, so it runs on two of them; one is
    refused with the reason, and nothing is changed."""
    with session(4) as one:
        undisturbed = numbers(result(Job(one, *HYBRID, file=FILE), "hybrid"))
    with session(4) as one:
        job = Job(one, *HYBRID, file=FILE)
        job.wait_for_step(1)
        before = one.placement
        with pytest.raises(LayoutRefused, match=r"hold 2 different shards.*at least 2 devices"):
            one.resize(1)
        assert one.placement == before
        devices = one.resize(2)["devices"]
        assert devices[0] == devices[2] != devices[1] == devices[3]
        assert numbers(result(job, "hybrid")) == undisturbed
