"""Killed ranks, proxies and launchers: torch's own error or recovery, and nothing hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.elastic.ranks import environments
from singularity_proxy.errors import BarrierFailed, SingularityError
from singularity_proxy.standalone import Standalone
from support.processes import stop_process

from benchmarks.jobs import DDP, Job, numbers

JOB = ("mlp", "--steps", "60", "--dropout", "0.1", "--bucket-mb", "0.02")
HANGS_S = 10.0


@pytest.fixture
def session() -> Iterator[Standalone]:
    with Standalone(devices=4, physical=2, spares=2) as one:
        yield one


@pytest.fixture(scope="module")
def undisturbed() -> list[tuple[list[str], str]]:
    with Standalone(devices=4, physical=2) as one:
        return numbers(Job(one, *JOB).result(300))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


RANKS = """
import os, sys, time, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.ones(1000, device="cuda")
dist.all_reduce(x)
print("step 0", x[0].item(), flush=True)
if rank == 2:
    time.sleep(100)  # until it is killed
try:
    dist.all_reduce(x)
    print("got", x[0].item(), flush=True)
except RuntimeError as error:
    print(type(error).__name__, error, flush=True)
    time.sleep(100)
"""


@pytest.fixture
def ranks_file(tmp_path: Path) -> Path:
    file = tmp_path / "ranks.py"
    file.write_text(RANKS)
    return file


def test_a_rank_killed_during_a_collective(session: Standalone, ranks_file: Path) -> None:
    """The others get torch's own error, which names the rank."""
    ranks = []
    for more in environments(4, {}):
        ranks.append(
            subprocess.Popen(
                [sys.executable, str(ranks_file)], env={**session.env(), **more},
                stdout=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "step 0 4.0\n"
        time.sleep(0.5)
        began = time.monotonic()
        ranks[2].kill()
        for rank in (ranks[0], ranks[1], ranks[3]):
            assert rank.stdout is not None
            line = rank.stdout.readline()
            assert line.startswith("DistBackendError "), line
            assert "rank 2" in line
            assert "all_reduce" in line
        assert time.monotonic() - began < HANGS_S
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_a_rank_killed_in_training_ends_the_job(session: Standalone) -> None:
    job = Job(session, *JOB)
    job.wait_for_step(5)
    began = time.monotonic()
    os.kill(job.pids()[1], signal.SIGKILL)
    job.wait(60)
    assert time.monotonic() - began < HANGS_S
    assert job.failure is not None
    job.stop()


def test_a_rank_killed_during_a_barrier(session: Standalone) -> None:
    """A barrier that cannot be reached gives up, and the session can be used again."""
    job = Job(session, "mlp", "--steps", "100000", "--bucket-mb", "0.02")
    job.wait_for_step(5)
    victim = job.pids()[3]
    stop_process(victim)  # it does not come to the barrier
    time.sleep(0.3)
    threading.Timer(1.0, os.kill, (victim, signal.SIGKILL)).start()
    began = time.monotonic()
    with contextlib.suppress(BarrierFailed):  # reached or not: the dead one is left out
        session.resize(1, deadline_s=8)
    assert time.monotonic() - began < HANGS_S
    job.wait(60)
    assert job.failure is not None
    job.stop()
    assert session.resize(4)["devices"] == [f"cpu:{i}" for i in range(4)]
    assert len(numbers(Job(session, "mlp", "--steps", "2").result(200))) == 4


@pytest.mark.parametrize("moment", ["training", "barrier", "resize"])
def test_a_killed_proxy_is_rebuilt_bit_for_bit(
    session: Standalone, undisturbed: list[tuple[list[str], str]], moment: str
) -> None:
    job = Job(session, *JOB)
    job.wait_for_step(5)
    victim = session.proxy_pids()[0]
    if moment == "training":
        os.kill(victim, signal.SIGKILL)
    else:
        delay = 0.002 if moment == "barrier" else 0.02
        threading.Timer(delay, os.kill, (victim, signal.SIGKILL)).start()
        began = time.monotonic()
        try:
            session.resize(1)
        except SingularityError:  # it was in the middle of the barrier: nothing was changed
            pass
        assert time.monotonic() - began < 3 * HANGS_S
    assert numbers(job.result(300)) == undisturbed


def test_a_killed_launcher_takes_its_ranks_along(session: Standalone, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCHER, str(DDP), str(tmp_path)]
    with subprocess.Popen(
        command, env=session.env(), stdout=subprocess.PIPE, text=True
    ) as launcher:
        try:
            assert launcher.stdout is not None
            while not launcher.stdout.readline().startswith("step 3"):
                assert launcher.poll() is None
            assert sum(len(proxy["rings"]) for proxy in session.stats()) >= 4
        finally:
            launcher.kill()
    until = time.monotonic() + HANGS_S
    while any(proxy["rings"] for proxy in session.stats()):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert session.resize(1)["devices"] == ["cpu:0"] * 4


LAUNCHER = """
import os, sys
from singularity_proxy.elastic.ranks import run_ranks, script
command = script(sys.argv[1], "mlp", "cuda", "--steps", "100000", "--out", sys.argv[2])
run_ranks(command, 4, os.environ, lambda rank, line: print(line, end="", flush=True))
"""
