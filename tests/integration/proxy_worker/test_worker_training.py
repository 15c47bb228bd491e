"""Training under the device proxy gives bitwise the numbers of native CPU training, also when the
session is parked, moved or its proxy killed in the middle of a step."""

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from singularity_proxy.standalone import Standalone

TRAINING = Path(__file__).parents[3] / "benchmarks" / "training.py"
SIZES = {
    "gpt": ["--steps", "3", "--batch", "2"],
    "cnn": ["--steps", "6", "--batch", "4"],
    "mlp": ["--steps", "60"],
}


def command(model: str, device: str) -> list[str]:
    return [sys.executable, str(TRAINING), model, device, "--dropout", "0.1", *SIZES[model]]


@functools.cache
def native_losses(model: str) -> list[str]:
    """Losses of an uninterrupted native run, made afresh in this run."""
    out = subprocess.run(command(model, "cpu"), check=True, capture_output=True, timeout=100)
    losses: list[str] = json.loads(out.stdout)["losses"]
    return losses


@pytest.mark.parametrize("model", list(SIZES))
def test_losses_are_bitwise_those_of_the_cpu(model: str) -> None:
    with Standalone() as session:
        out = subprocess.run(
            command(model, "cuda"), env=session.env(), check=True, capture_output=True, timeout=100
        )
        assert session.stats()[0]["memory_peak"] > 0  # it ran in the proxy
    assert json.loads(out.stdout)["losses"] == native_losses(model)


def disturb(session: Standalone, how: str, done: threading.Event, times: list[int]) -> None:
    """Every 0.3 s: take the device away in the middle of whatever runs."""
    while not done.wait(0.3):
        if not session.proxy_pids():
            continue
        if how == "kill":
            os.kill(session.proxy_pids()[0], signal.SIGKILL)
            time.sleep(0.05)
            session.attach()
        else:
            session.park()
            session.attach([f"cpu:{len(times) % 2 + 1}"])
        times.append(1)


@pytest.mark.parametrize("how", ["park", "kill"])
@pytest.mark.parametrize("model", ["gpt", "cnn"])
def test_losses_stay_bitwise_equal_when_the_device_goes_away_mid_step(model: str, how: str) -> None:
    done, times = threading.Event(), []
    with Standalone() as session:
        worker = subprocess.Popen(command(model, "cuda"), env=session.env(), stdout=subprocess.PIPE)
        thread = threading.Thread(target=disturb, args=(session, how, done, times))
        thread.start()
        try:
            out, _ = worker.communicate(timeout=100)
        finally:
            done.set()
            thread.join()
            worker.kill()
    assert worker.returncode == 0
    assert json.loads(out)["losses"] == native_losses(model)
    assert len(times) >= 2  # it was really disturbed
