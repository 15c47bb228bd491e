"""Tiers of a trace: the same in every process, in the asked shares, premium within its cap."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.sim.traces.records import Job
from singularity_scheduler.sim.traces.tiers import Tiers, assign_tiers, ideal_s


def jobs(count: int, seed: int = 0, devices: int = 1, work_s: float = 10.0) -> list[Job]:
    rng = random.Random(seed)
    submits = sorted(rng.random() * count for _ in range(count))
    return [Job(i, f"job-{i}", at, work_s, devices) for i, at in enumerate(submits)]


def test_shares() -> None:
    found = jobs(20_000)
    assert assign_tiers(found, 0, devices=10**6) == 0
    counts = Counter(job.tier for job in found)
    assert counts["premium"] / 20_000 == pytest.approx(0.2, abs=0.01)
    assert counts["standard"] / 20_000 == pytest.approx(0.4, abs=0.015)
    assert counts["basic"] / 20_000 == pytest.approx(0.4, abs=0.015)


def test_the_same_in_every_process_and_subset() -> None:
    found = jobs(300)
    assign_tiers(found, 7, devices=10**6)
    part = [Job(0, job.name, job.submit_s, job.work_s, 1) for job in found[::3]]
    assign_tiers(part, 7, devices=10**6)
    assert [job.tier for job in part] == [job.tier for job in found[::3]]
    before = [job.tier for job in found]
    assign_tiers(found, 8, devices=10**6)
    assert [job.tier for job in found] != before
    script = (
        "from singularity_scheduler.sim.traces.tiers import Tiers\n"
        "from singularity_scheduler.sim.traces.records import Job\n"
        "tiers = Tiers(7, devices=10**6)\n"
        "print([tiers.tier(Job(0, f'job-{i}', 0, 1, 1))[0] for i in range(40)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{[tier[0] for tier in before[:40]]}\n"}


def test_premium_asks_for_no_more_than_its_cap() -> None:
    found = jobs(5_000, devices=4, work_s=50.0)
    found[10].share_milli = 500
    moved = assign_tiers(found, 0, devices=100)
    free = [Job(0, job.name, job.submit_s, 0.0, 1) for job in found]
    assign_tiers(free, 0, devices=100)
    premium = [job for job in found if job.tier == "premium"]
    assert moved == sum(job.tier == "premium" for job in free) - len(premium) > 0
    highest = 0.0
    for job in premium:
        at = job.submit_s
        asked = sum(
            4 * other.share_milli / 1000
            for other in premium
            if other.submit_s <= at < other.submit_s + other.work_s
        )
        highest = max(highest, asked)
    assert 56 <= highest <= 60


def test_a_notebook_lasts_as_long_as_its_user() -> None:
    notebook = Job(0, "n", 0.0, 30.0, 1, cells=((100.0, 10.0), (0.0, 20.0)), linger_s=5.0)
    assert ideal_s(notebook) == 135.0
    tiers = Tiers(0, (1.0, 0.0, 0.0), devices=1, premium_cap=1.0)
    assert tiers.tier(notebook) == "premium"
    assert tiers.tier(Job(1, "a", 134.0, 1.0, 1)) == "standard"
    assert tiers.tier(Job(2, "b", 135.0, 1.0, 1)) == "premium"
    assert tiers.moved == 1


@pytest.mark.parametrize(
    ("shares", "devices", "cap", "sentence"),
    [
        ((0.5, 0.5, 0.5), 1, 0.6, "the shares of the tiers are (0.5, 0.5, 0.5): they must"),
        ((-0.5, 0.5, 1.0), 1, 0.6, "the shares of the tiers are"),
        ((0.2, 0.4, 0.4), 0, 0.6, "the cluster has 0 devices: give at least 1"),
        ((0.2, 0.4, 0.4), 1, 1.6, "premium_cap is 1.6: it must be from 0 to 1"),
    ],
)
def test_bad_parameters(
    shares: tuple[float, float, float], devices: int, cap: float, sentence: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        Tiers(0, shares, devices=devices, premium_cap=cap)
    assert caught.value.message.startswith(sentence)
