"""Unchanged DDP training on 4, 2 and 1 physical devices, and while their number changes: the same
losses and weights, bit for bit."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from singularity_proxy.elastic.coordinator import Cut
from singularity_proxy.standalone import Standalone
from support.matrix import is_full, seed

from benchmarks.jobs import Job, numbers

STEPS = 20 if is_full() else 8
MODEL = "gpt" if is_full() else "gpt_small"
GPT = (MODEL, "--steps", str(STEPS), "--dropout", "0.1", "--batch", "2")


def session(physical: int, **options: object) -> Standalone:
    return Standalone(devices=4, physical=physical, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[list[tuple[list[str], str]]]:
    """Four devices from the beginning to the end."""
    with session(4) as one:
        job = Job(one, *GPT)
        yield numbers(job.result(300))


def test_weights_are_one_and_losses_are_not(
    undisturbed: list[tuple[list[str], str]],
) -> None:
    """Ranks have batches and random numbers of their own."""
    assert len({weights for _, weights in undisturbed}) == 1
    assert len({tuple(losses) for losses, _ in undisturbed}) == 4


def test_it_is_what_gloo_computes(undisturbed: list[tuple[list[str], str]]) -> None:
    native = numbers(Job(None, *GPT).result(300))
    for (mine, _), (theirs, _) in zip(undisturbed, native, strict=True):
        pairs = zip(map(float.fromhex, mine), map(float.fromhex, theirs), strict=True)
        assert all(abs(a - b) <= 1e-4 * abs(b) for a, b in pairs)
        assert mine[0] == theirs[0]  # before the first reduction


@pytest.mark.parametrize("physical", [2, 1])
def test_fewer_devices_give_the_same_bits(
    physical: int, undisturbed: list[tuple[list[str], str]]
) -> None:
    with session(physical) as one:
        job = Job(one, *GPT)
        assert numbers(job.result(300)) == undisturbed
        assert len(one.proxy_pids()) == physical


def peak_bytes(ranks: int, capacity: int) -> int:
    """Of one device on which so many ranks train. Raises when they do not fit."""
    with session(1, capacity_bytes=capacity) as one:
        job = Job(one, "gpt", "--steps", "5", "--batch", "8", "--stay", ranks=ranks)
        try:
            job.wait_until_done(200)
            (proxy,) = one.stats()
            job.result()
        finally:
            job.stop()
    if ranks > 1:
        assert proxy["squashing"]["swapped_out_bytes"] > 0
    return int(proxy["memory_peak"])


@pytest.mark.timeout(300)
def test_four_replicas_fit_where_one_does() -> None:
    """What waiting ranks have to themselves, and sums that are not complete, are on the host."""
    alone = peak_bytes(1, 4 << 30)
    assert peak_bytes(4, int(1.1 * alone)) <= 1.1 * alone


def test_the_number_of_devices_changes_at_random_steps(
    undisturbed: list[tuple[list[str], str]],
) -> None:
    chance = random.Random(seed())
    with session(4, spares=3) as one:
        job = Job(one, *GPT)
        at = sorted(chance.sample(range(STEPS - 2), 3))
        for step, count in zip(at, (1, 2, 4), strict=True):
            job.wait_for_step(step)
            answer = one.resize(count)
            assert len(set(answer["devices"])) == count
            assert answer["moved"]
            assert answer["barrier_s"] < 10
        assert numbers(job.result(300)) == undisturbed


def test_ranks_stop_within_a_step_or_two() -> None:
    """Barriers at random moments of a small model: 1,000 of them in a full run."""
    chance = random.Random(seed())
    triggers = 1000 if is_full() else 25
    with session(2) as one:
        job = Job(one, "mlp", "--steps", "1000000", "--bucket-mb", "0.02")
        job.wait_for_step(5)
        cuts, first = [], job.step
        for _ in range(triggers):
            cuts.append(one.barrier(10))
            time.sleep(chance.uniform(0, 0.05))
        per_step = round(_rate(cuts, job.step - first))
        job.stop()
    far = sorted(max(cut.advanced.values()) / per_step for cut in cuts)
    assert far[len(far) // 2] <= 1
    assert far[-1] <= 2
    assert max(cut.seconds for cut in cuts) < 10


def _rate(cuts: list[Cut], steps: int) -> float:
    """Collectives per step."""
    (key,) = cuts[0].contributed
    return (cuts[-1].contributed[key] - cuts[0].contributed[key]) / steps
