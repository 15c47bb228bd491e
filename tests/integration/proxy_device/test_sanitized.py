"""Real code through a device proxy built with the sanitizers: one wrong access ends the proxy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from singularity_proxy.standalone import Standalone
from support import matrix, sanitizer

TRAINING = Path(__file__).parents[3] / "benchmarks" / "training.py"
CHECKS = Path(__file__).parents[2] / "checks" / "run.py"
NAMES = ["dtypes", "views_inplace", "out_variants", "indexing", "rng_generator", "printing"]


def session() -> Standalone:
    return Standalone(proxy_env=sanitizer.environment())


def is_sanitized(pid: int) -> bool:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return "/build/address/_singularity_native" in maps and "libasan" in maps


@pytest.mark.timeout(sanitizer.BUILD_SECONDS + 200)
def test_the_checks_run_in_a_sanitized_proxy(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    names = [] if matrix.is_full() else NAMES
    with session() as one:
        command = [sys.executable, str(CHECKS), str(out), *names]
        subprocess.run(command, env=one.env(), timeout=600, check=True, capture_output=True)
        (pid,) = one.proxy_pids()
        assert is_sanitized(pid)
    results = json.loads(out.read_text())
    if names:
        assert results == dict.fromkeys(names, "ok")
    else:
        assert sum(text.startswith("ok") for text in results.values()) >= 102


@pytest.mark.timeout(sanitizer.BUILD_SECONDS + 200)
def test_training_is_parked_killed_and_rebuilt_in_sanitized_proxies() -> None:
    command = [sys.executable, str(TRAINING), "mlp", "cuda", "--steps", "120", "--dropout", "0.1"]
    native = [word if word != "cuda" else "cpu" for word in command]
    expected = subprocess.run(native, check=True, capture_output=True, timeout=200).stdout
    done, moves, plain = threading.Event(), [], []
    with session() as one:
        worker = subprocess.Popen(command, env=one.env(), stdout=subprocess.PIPE)

        def disturb() -> None:
            while not done.wait(0.1):
                pids = one.proxy_pids()
                if not pids:
                    continue
                maps = Path(f"/proc/{pids[0]}/maps").read_text()
                plain.extend(pids if maps and not is_sanitized(pids[0]) else [])
                if len(moves) % 2:
                    os.kill(pids[0], 9)
                else:
                    one.park()
                one.attach()
                moves.append(pids[0])

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            out, _ = worker.communicate(timeout=200)
        finally:
            done.set()
            thread.join()
            worker.kill()
    assert json.loads(out)["losses"] == json.loads(expected)["losses"]
    assert len(moves) >= 2
    assert not plain
