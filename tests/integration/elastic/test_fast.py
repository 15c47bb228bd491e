"""Sessions whose collectives are `fast`: each device adds up its own ranks first. Close to the bits
of `bitwise`, one value for all ranks, and as safe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from singularity_proxy.elastic.ranks import environments
from singularity_proxy.standalone import Standalone

from benchmarks.jobs import Job, numbers

STEPS = 8
GPT = ("gpt_small", "--steps", str(STEPS), "--dropout", "0.1", "--batch", "2")
Numbers = list[tuple[list[str], str]]


def session(physical: int, collectives: str | None = "fast", **options: object) -> Standalone:
    return Standalone(devices=4, physical=physical, collectives=collectives, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def bitwise() -> Iterator[Numbers]:
    with session(2, "bitwise") as one:
        yield numbers(Job(one, *GPT).result(300))


@pytest.fixture(scope="module")
def fast() -> Iterator[Numbers]:
    """Two ranks on each of two devices."""
    with session(2) as one:
        yield numbers(Job(one, *GPT).result(300))


def close(mine: Numbers, theirs: Numbers) -> bool:
    """Losses, as far as another order of additions goes."""
    pairs = [
        (float.fromhex(a), float.fromhex(b))
        for one, other in zip(mine, theirs, strict=True)
        for a, b in zip(one[0], other[0], strict=True)
    ]
    return all(abs(a - b) <= 1e-4 * abs(b) for a, b in pairs)


def weights(result: Numbers) -> set[str]:
    return {digest for _, digest in result}


def test_fast_training_is_close_to_bitwise_and_one_on_all_ranks(
    fast: Numbers, bitwise: Numbers
) -> None:
    assert close(fast, bitwise)
    assert len(weights(fast)) == 1
    assert weights(fast) != weights(bitwise)  # it is another order


@pytest.mark.parametrize("physical", [4, 1])
def test_it_is_bitwise_where_no_device_has_some_of_the_ranks(
    physical: int, bitwise: Numbers
) -> None:
    with session(physical) as one:
        assert numbers(Job(one, *GPT).result(300)) == bitwise


def test_killed_proxies_change_nothing(fast: Numbers) -> None:
    with session(2, spares=2) as one:
        job = Job(one, *GPT)
        for step, proxy in ((1, 0), (3, 1), (5, 0)):
            job.wait_for_step(step)
            os.kill(one.proxy_pids()[proxy], signal.SIGKILL)
        assert numbers(job.result(300)) == fast


def test_the_number_of_devices_changes(bitwise: Numbers) -> None:
    with session(4, spares=3) as one:
        job = Job(one, *GPT)
        for step, count in ((1, 2), (3, 1), (5, 2)):
            job.wait_for_step(step)
            assert len(set(one.resize(count)["devices"])) == count
        result = numbers(job.result(300))
    assert close(result, bitwise)
    assert len(weights(result)) == 1


SMALL = """
import os, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
try:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x)
    print("RESULT", x[0].item())
except Exception as error:
    print("RESULT", type(error).__name__, error)
os._exit(0)
"""


def small(one: Standalone, words: list[str]) -> list[str]:
    """What ranks with these words in their environments print."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SMALL],
            env={**one.env(), **more, "SINGULARITY_COLLECTIVES": word},
            stdout=subprocess.PIPE,
            text=True,
        )
        for word, more in zip(words, environments(len(words), {}), strict=True)
    ]
    try:
        printed = [child.communicate(timeout=60)[0] for child in started]
    finally:
        for child in started:
            child.kill()
    return [line for text in printed for line in text.splitlines() if "RESULT" in line]


def test_a_word_that_is_unknown_and_words_that_differ_are_refused() -> None:
    with Standalone(devices=2, physical=2) as one:
        assert small(one, ["fast", "fast"]) == ["RESULT 2.0"] * 2
        unknown = small(one, ["quick", "quick"])
        assert len(unknown) == 2
        for line in unknown:
            assert "SINGULARITY_COLLECTIVES is 'quick', but it can be bitwise or fast" in line
        different = small(one, ["fast", ""])
        assert len(different) == 2
        for line in different:
            assert "rank 0 wants collectives to be fast and rank 1 wants them bitwise" in line
            assert "DistBackendError" in line
