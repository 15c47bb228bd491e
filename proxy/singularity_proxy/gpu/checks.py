"""What must be right on a physical device; each check compares with the same code run natively.

A check is a function of the run; it returns figures and details, raises `Wrong` with one sentence
when something is not as it must be, and `Skip` with a reason where it cannot be tried.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singularity_proxy.errors import SingularityError
from singularity_proxy.standalone import Standalone

CHECKOUT = Path(__file__).resolve().parents[3]
TRAINING = CHECKOUT / "benchmarks" / "training.py"
COVERAGE = CHECKOUT / "tests" / "checks" / "run.py"
FEWEST_CHECKS = 106
"""Coverage checks that must pass."""
TOLERANCE = 1e-3
"""Largest relative difference of a loss where the device's own arithmetic is not repeatable."""


class Wrong(Exception):
    """One sentence: what is not as it must be."""


class Skip(Exception):
    """One sentence: why this cannot be tried here."""


@dataclass(frozen=True)
class Run:
    """What one run of the runner is about."""

    device: str
    """The physical device: "cuda", or "cpu" to try the runner itself."""
    quick: bool
    driver_library: str
    """The CUDA driver; "" when processes are never checkpointed by it."""

    def session(self, **more: Any) -> Standalone:
        """One virtual device on the physical one."""
        options: dict[str, Any] = {
            "capacity_bytes": 0 if self.device == "cuda" else 4 << 30,
            "driver_library": self.driver_library,
            # For the math libraries of the proxy; the native run has it too.
            "proxy_env": DETERMINISTIC,
        }
        return Standalone(self.device, **(options | more))


DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
REPEATABLE = """
import runpy, sys, torch
torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.benchmark = False
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def program(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def answer_of(command: list[str], env: dict[str, str], timeout: float = 300) -> Any:
    """The JSON that a program prints as its last line; Wrong when it fails."""
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise Wrong(f"a program did not end within {timeout:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Wrong(f"a program ended with code {done.returncode}: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def native_env() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SINGULARITY_")}
    return inherited | DETERMINISTIC


def need_checkout() -> None:
    if not TRAINING.is_file() or not COVERAGE.is_file():
        raise Skip("this part needs the project's checkout beside the package")


# ---- the checks


COPY_SIZES = (1, 4095, 1 << 20, (1 << 20) + 1, (5 << 20) + 3)
STAGED = """
import json, os, sys, torch
from singularity_proxy import build
native = build.load()
if sys.argv[1] != "cpu":
    torch.cuda.init()
    torch.zeros(1, device=sys.argv[1])
wrong, pinned = [], True
for size in json.loads(sys.argv[2]):
    for slots, slot_bytes in ((1, 4096), (2, 65536), (4, 1 << 20)):
        data = os.urandom(size)
        back, was_pinned = native.staged_copy(sys.argv[1], data, slots, slot_bytes)
        pinned = pinned and was_pinned
        if back != data:
            wrong.append([size, slots, slot_bytes])
print(json.dumps({"wrong": wrong, "pinned": pinned}))
"""


def staged_copies(run: Run) -> dict[str, Any]:
    """Bytes go to the device and back through pinned buffers unchanged, whatever their size."""
    device = f"{run.device}:0" if run.device == "cuda" else "cpu"
    answer = answer_of(program(STAGED, device, json.dumps(COPY_SIZES)), native_env())
    if answer["wrong"]:
        raise Wrong(f"copies of these (bytes, buffers, buffer size) changed: {answer['wrong']}")
    if run.device == "cuda" and not answer["pinned"]:
        raise Wrong("the buffers could not be pinned")
    return dict(answer)


PROPERTIES = """
import json, torch
p = torch.cuda.get_device_properties(0)
print(json.dumps({
    "name": p.name, "total_memory": p.total_memory, "capability": [p.major, p.minor],
    "multi_processor_count": p.multi_processor_count, "cudnn": torch.backends.cudnn.version(),
}))
"""
ONE_OPERATION = "import torch; torch.ones(1, device='cuda').item()\n"


def properties(run: Run) -> dict[str, Any]:
    """What user code is told about its device is what the device is."""
    with run.session() as session:
        proxied = answer_of(program(ONE_OPERATION + PROPERTIES), session.env())
    if run.device != "cuda":
        return {"proxied": proxied}
    native = answer_of(program(PROPERTIES), native_env())
    if different := sorted(k for k in native if native[k] != proxied[k]):
        raise Wrong(f"these differ from the device's own: {different} ({proxied} is not {native})")
    return {"proxied": proxied}


def coverage(run: Run) -> dict[str, Any]:
    """The checks of unchanged "cuda" code in tests/checks."""
    need_checkout()
    with tempfile.TemporaryDirectory() as folder, run.session() as session:
        out = Path(folder) / "out.json"
        command = [sys.executable, str(COVERAGE), str(out)]
        subprocess.run(command, env=session.env(), timeout=900, check=False, capture_output=True)
        results: dict[str, str] = json.loads(out.read_text()) if out.exists() else {}
    failed = {name: text for name, text in results.items() if not text.startswith("ok")}
    passed = len(results) - len(failed)
    if passed < FEWEST_CHECKS:
        raise Wrong(f"{passed} of {len(results)} coverage checks pass: {failed}")
    return {"figures": {"coverage_passed": passed, "coverage_checks": len(results)}, "fail": failed}


SIZES = {"gpt": ["--steps", "3", "--batch", "2"], "cnn": ["--steps", "4", "--batch", "4"],
         "mlp": ["--steps", "60"]}  # fmt: skip


def train(device: str, model: str, dropout: float, *more: str) -> list[str]:
    script = [str(TRAINING), model, device, "--dropout", str(dropout), *(more or SIZES[model])]
    return program(REPEATABLE, *script)


def compare(run: Run, what: str, proxied: list[str], native: list[str]) -> bool:
    """True when all losses are bitwise equal; Wrong when they are too far from it."""
    if proxied == native:
        return True
    pairs = [(float.fromhex(a), float.fromhex(b)) for a, b in zip(proxied, native, strict=True)]
    worst = max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs)
    if run.device == "cpu" or not worst <= TOLERANCE:
        raise Wrong(f"{what}: losses differ by up to {worst:.1e} from the native ones")
    return False


def parity(run: Run) -> dict[str, Any]:
    """Training gives the losses of native training on the same device."""
    need_checkout()
    bitwise: dict[str, bool] = {}
    for model in ("mlp", "cnn") if run.quick else tuple(SIZES):
        for dropout in (0.0, 0.1):
            native = answer_of(train(run.device, model, dropout), native_env())["losses"]
            with run.session() as session:
                proxied = answer_of(train("cuda", model, dropout), session.env())["losses"]
            name = f"{model}, dropout {dropout}"
            bitwise[name] = compare(run, name, proxied, native)
    return {"bitwise": bitwise}


def recovery(run: Run) -> dict[str, Any]:
    """Training goes on with the same losses when its proxy is killed again and again."""
    need_checkout()
    command = train("cuda", "mlp", 0.1, "--steps", "150" if run.quick else "600")
    with run.session() as session:
        undisturbed = answer_of(command, session.env())["losses"]
    kills, done = [], threading.Event()
    with run.session() as session:

        def kill() -> None:
            while not done.wait(0.3):
                for pid in session.proxy_pids():
                    os.kill(pid, signal.SIGKILL)
                    kills.append(pid)
                    time.sleep(0.05)
                    session.attach()

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            disturbed = answer_of(command, session.env())["losses"]
        finally:
            done.set()
            thread.join()
    if not kills:
        raise Wrong("training ended before its proxy could be killed")
    same = compare(run, "after kills", disturbed, undisturbed)
    return {"bitwise": same, "figures": {"recovery_kills": len(kills)}}


OUT_OF_MEMORY = """
import json, torch
kept = torch.full((1 << 20,), 3.0, device="cuda")
try:
    torch.empty(1 << 36, device="cuda")
    raised = False
except torch.cuda.OutOfMemoryError as error:
    raised = str(error).startswith("CUDA out of memory. Tried to allocate 256.00 GiB")
print(json.dumps({"raised": raised, "kept": kept.sum().item() == 3 * 2**20}))
"""


def out_of_memory(run: Run) -> dict[str, Any]:
    """Too large an allocation raises where it is made, and the program goes on."""
    with run.session(capacity_bytes=1 << 30) as session:
        answer = answer_of(program(OUT_OF_MEMORY), session.env())
    if answer != {"raised": True, "kept": True}:
        raise Wrong(f"out of memory is not raised, or not survived: {answer}")
    return {}


CHECKS: dict[str, Callable[[Run], dict[str, Any]]] = {
    "staged_copies": staged_copies,
    "properties": properties,
    "coverage": coverage,
    "parity": parity,
    "recovery": recovery,
    "out_of_memory": out_of_memory,
}


def attempt(check: Callable[[Run], dict[str, Any]], run: Run) -> dict[str, Any]:
    """One entry of the report; never raises but for Ctrl-C."""
    start = time.monotonic()
    entry: dict[str, Any] = {"what": (check.__doc__ or "").split("\n")[0]}
    try:
        entry |= {"status": "passed", **check(run)}
    except Skip as reason:
        entry |= {"status": "skipped", "reason": str(reason)}
    except Wrong as sentence:
        entry |= {"status": "failed", "reason": str(sentence)}
    except SingularityError as error:
        entry |= {"status": "failed", "reason": error.message}
    except Exception as error:  # a report with one failed entry is worth more than none
        entry |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    entry["seconds"] = round(time.monotonic() - start, 3)
    return entry
