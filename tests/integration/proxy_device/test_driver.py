"""Parking by the driver's process checkpoint, against a test double of its six functions.

The double (support/driver_double.c) walks through the driver's states and fails when told to. It
moves no memory: what is tested is every decision around it, with a real session whose worker trains
on. On a GPU `tests/gpu` and `./dev gpu` do the same with the real driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.device import driver
from singularity_proxy.checkpoint.device.driver import (
    DriverFailed,
    DriverHelper,
    DriverLost,
    DriverState,
    DriverUnavailable,
)
from singularity_proxy.errors import BadRequest
from singularity_proxy.standalone import Standalone
from support import driver_double, matrix
from support.driver_double import Double

TRAINING = Path(__file__).parents[3] / "benchmarks" / "training.py"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return driver_double.build(tmp_path_factory.mktemp("double"))


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Double:
    monkeypatch.setenv("DRIVER_DOUBLE", str(tmp_path))
    return Double(tmp_path)


@pytest.fixture
def helper(library: str, double: Double) -> Iterator[DriverHelper]:
    with DriverHelper(library) as made:
        yield made


@pytest.fixture
def target() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def state(helper: DriverHelper, pid: int) -> DriverState:
    return DriverState(helper.call("state", 10, pid=pid))


def test_there_and_back(
    helper: DriverHelper, double: Double, target: subprocess.Popen[bytes]
) -> None:
    moved = driver.park(helper, target.pid, 1 << 20)
    assert moved.seconds == moved.wait_s + moved.copy_s > 0
    assert state(helper, target.pid) == DriverState.CHECKPOINTED
    driver.unpark(helper, target.pid, 1 << 20)
    assert state(helper, target.pid) == DriverState.RUNNING
    assert double.calls() == ["lock", "checkpoint", "restore", "unlock"]


@pytest.mark.parametrize(
    ("plan", "sentence", "calls"),
    [
        (["lock busy"], "lock of process .* did not end in time", ["lock"]),
        (["lock error"], "lock of process .* failed: CUDA_ERROR_UNKNOWN", ["lock"]),
        (["checkpoint error"], "checkpoint of process", ["lock", "checkpoint", "unlock"]),
    ],
)
def test_a_refusal_leaves_the_process_running(
    helper: DriverHelper,
    double: Double,
    target: subprocess.Popen[bytes],
    plan: list[str],
    sentence: str,
    calls: list[str],
) -> None:
    double.plan(*plan)
    with pytest.raises(DriverFailed, match=sentence):
        driver.park(helper, target.pid, 0)
    assert state(helper, target.pid) == DriverState.RUNNING
    assert double.calls() == calls
    driver.park(helper, target.pid, 0)  # and it can be tried again


@pytest.mark.parametrize("plan", [["checkpoint failed"], ["checkpoint error", "unlock error"]])
def test_half_a_checkpoint_is_a_lost_process(
    helper: DriverHelper, double: Double, target: subprocess.Popen[bytes], plan: list[str]
) -> None:
    double.plan(*plan)
    with pytest.raises(DriverLost, match="does not run any more"):
        driver.park(helper, target.pid, 0)


@pytest.mark.parametrize("plan", [["restore error"], ["restore failed"], ["unlock error"]])
def test_a_process_that_cannot_come_back_is_lost(
    helper: DriverHelper, double: Double, target: subprocess.Popen[bytes], plan: list[str]
) -> None:
    driver.park(helper, target.pid, 0)
    double.plan(*plan)
    with pytest.raises(DriverLost, match="cannot go back to its GPU"):
        driver.unpark(helper, target.pid, 0)


@pytest.mark.parametrize("call", ["lock", "checkpoint", "restore", "unlock"])
def test_a_call_that_hangs_is_given_up(
    helper: DriverHelper,
    double: Double,
    target: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    monkeypatch.setattr(driver, "COPY_SECONDS", 1.0)
    monkeypatch.setattr(driver, "LOCK_SECONDS", -29.0)  # 1 s with its margin
    if call in ("restore", "unlock"):
        monkeypatch.setattr(driver, "LOCK_SECONDS", 10.0)
        driver.park(helper, target.pid, 0)
        monkeypatch.setattr(driver, "LOCK_SECONDS", -29.0)
    elif call == "checkpoint":
        monkeypatch.setattr(driver, "LOCK_SECONDS", 10.0)
    double.plan(f"{call} hang")
    start = time.monotonic()
    with pytest.raises(DriverLost, match=rf"the CUDA driver's {call} did not return within 1 s"):
        (driver.park if call in ("lock", "checkpoint") else driver.unpark)(helper, target.pid, 0)
    assert time.monotonic() - start < 20
    assert state(helper, target.pid) in tuple(DriverState)  # a new helper answers


@pytest.mark.parametrize("limit", [0.5, 600.0])
def test_a_helper_whose_owner_is_gone_waits_as_long_as_the_call_may_take(
    helper: DriverHelper,
    double: Double,
    target: subprocess.Popen[bytes],
    limit: float,
) -> None:
    helper.call("version", 60)
    process = helper._process
    assert process is not None
    assert process.stdin is not None
    double.plan("lock hang")
    question = {"call": "lock", "limit_s": limit, "pid": target.pid, "timeout_ms": 1000}
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.close()
    if limit < 1:
        assert process.wait(20) == 1
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)


def test_a_process_that_is_gone(helper: DriverHelper, target: subprocess.Popen[bytes]) -> None:
    target.kill()
    target.wait()
    with pytest.raises(DriverFailed, match=f"lock of process {target.pid} failed"):
        driver.park(helper, target.pid, 0)


def test_where_there_is_no_driver(tmp_path: Path, library: str) -> None:
    missing = str(tmp_path / "libnone.so")
    for path, why in ((missing, "no CUDA driver can be loaded"), ("libc.so.6", "570 and newer")):
        with DriverHelper(path) as helper, pytest.raises(DriverUnavailable, match=why):
            helper.call("version", 60)
    done = subprocess.run(
        [sys.executable, "-m", driver.MODULE, "--library", library],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == {"available": True, "version": 12080}


# ---- a session


def train() -> list[str]:
    return [sys.executable, str(TRAINING), "mlp", "cuda", "--steps", "400", "--dropout", "0.1"]


@pytest.fixture(scope="module")
def native() -> list[str]:
    command = [word if word != "cuda" else "cpu" for word in train()]
    out = subprocess.run(command, check=True, capture_output=True, timeout=100).stdout
    losses: list[str] = json.loads(out)["losses"]
    return losses


@pytest.mark.parametrize(
    ("plan", "way", "ways", "same_process"),
    [
        ([], "driver", ["driver"], True),
        (["restore failed"], "driver", ["driver"], False),
        *matrix.some_of(
            [
                ([], "copy", ["copy"], False),
                (["checkpoint error"], "driver", ["copy"], False),
                (["checkpoint failed"], "driver", ["driver"], False),
            ],
            1,
        ),
    ],
)
def test_training_goes_on_bitwise_whatever_the_driver_does(
    library: str,
    double: Double,
    native: list[str],
    plan: list[str],
    way: str,
    ways: list[str],
    same_process: bool,
) -> None:
    with Standalone(driver_library=library) as session:
        worker = subprocess.Popen(train(), env=session.env(), stdout=subprocess.PIPE)
        while not session.proxy_pids() or session.stats()[0]["rings"] == {}:
            assert worker.poll() is None
            time.sleep(0.01)
        while next(iter(session.stats()[0]["rings"].values()))["done_seq"] < 500:
            time.sleep(0.005)
        session.automatic = False
        (before,) = session.proxy_pids()
        double.plan(*plan)
        answer = session.park(way)
        assert answer["ways"] == ways
        assert answer["bytes"] > 0 or plan == ["checkpoint failed"]
        (ring,) = session.rings()
        done = ring.read().done_seq
        time.sleep(0.2)
        assert ring.read().done_seq == done  # nothing is executed while it is parked
        session.attach()
        assert (session.proxy_pids() == [before]) == same_process
        session.automatic = True
        out, _ = worker.communicate(timeout=100)
        assert worker.returncode == 0
        assert json.loads(out)["losses"] == native
        if way == "driver" and not plan:
            assert list(session.measured.taken) == ["driver"]
            assert os.path.exists(f"/proc/{before}")


def test_the_way_is_chosen_and_measured(library: str, double: Double) -> None:
    with Standalone(driver_library=library) as session:
        code = "import torch, sys; a = torch.ones(1000, device='cuda'); a.sum().item(); input()"
        worker = subprocess.Popen(
            [sys.executable, "-c", code], env=session.env(), stdin=subprocess.PIPE
        )
        while not session.proxy_pids():
            assert worker.poll() is None
            time.sleep(0.01)
        session.automatic = False
        taken = []
        for _ in range(2):
            taken += session.park()["ways"]
            session.attach()
        assert taken == ["driver", "copy"]
        assert sorted(session.measured.taken) == ["copy", "driver"]
        with pytest.raises(BadRequest, match="not 'magic'"):
            session.park("magic")
        worker.communicate(b"\n", timeout=60)
