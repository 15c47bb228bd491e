"""What the device proxy costs on a physical device, and how fast it leaves it and comes back.

Each figure is one number of the report. Ratios are of two runs beside each other on this machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

from singularity_proxy.checkpoint.device import driver
from singularity_proxy.standalone import Standalone

from .checks import Run, Skip, Wrong, answer_of, native_env, need_checkout, program, train

LARGEST_OVERHEAD = 1.01
"""Proxied over native time of a training step of at least `LONG_STEP_MS`."""
LONG_STEP_MS = 50.0
LEAST_PARK_RATE = 0.8
"""Park's bytes per second over those of a plain copy to pinned memory."""


def _median_step_ms(seconds: list[float]) -> float:
    settled = seconds[len(seconds) // 3 :]
    return statistics.median(settled) * 1e3


def training_speed(run: Run) -> dict[str, Any]:
    """Time of a training step, proxied over native: a large model, and a launch-bound one."""
    need_checkout()
    large = ["--batch", "2", "--steps", "6"] if run.device == "cpu" else ["--batch", "256"]
    cases = {"gpt": large, "mlp": ["--steps", "60" if run.quick else "300"]}
    figures: dict[str, float] = {}
    for model, size in cases.items():
        native: list[float] = []
        proxied: list[float] = []
        for _ in range(1 if run.quick else 3):  # interleaved: the machine's mood hits both
            command = train(run.device, model, 0.0, *size)
            native.append(_median_step_ms(answer_of(command, native_env())["seconds"]))
            with run.session() as session:
                session.wait_warm()
                command = train("cuda", model, 0.0, *size)
                proxied.append(_median_step_ms(answer_of(command, session.env())["seconds"]))
        figures[f"{model}_native_ms"] = statistics.median(native)
        figures[f"{model}_ratio"] = statistics.median(
            p / n for p, n in zip(proxied, native, strict=True)
        )
    long_step = figures["gpt_native_ms"] >= LONG_STEP_MS
    if run.device == "cuda" and long_step and figures["gpt_ratio"] > LARGEST_OVERHEAD:
        raise Wrong(f"a step of {figures['gpt_native_ms']:.0f} ms takes {figures['gpt_ratio']:.3f}"
                    f" times as long as native, more than {LARGEST_OVERHEAD}")  # fmt: skip
    return {"figures": figures, "step_is_long": long_step}


ROUND_TRIPS = """
import json, sys, torch
torch.ones(1, device="cuda").item()
native = sys.modules["_singularity_native"]
native.time_round_trips(200)
ns = sorted(native.time_round_trips(2000))
print(json.dumps({"sync_us_p50": ns[1000] / 1e3, "sync_us_p90": ns[1800] / 1e3}))
"""
COPIES = """
import json, sys, time, torch
device, size, pinned = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "pinned"
host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(1)
there = torch.empty(size, dtype=torch.uint8, device=device)
there.copy_(host); there[:1].item()
def rate(copy):
    best = 0.0
    for _ in range(5):
        start = time.perf_counter(); copy(); there[:1].item()
        best = max(best, size / (time.perf_counter() - start) / 1e9)
    return best
print(json.dumps({"h2d": rate(lambda: there.copy_(host)), "d2h": rate(lambda: host.copy_(there))}))
"""


def round_trips(run: Run) -> dict[str, Any]:
    """A synchronisation from the worker to the device's proxy and back."""
    with run.session() as session:
        session.wait_warm()
        return {"figures": answer_of(program(ROUND_TRIPS), session.env())}


def _copy_rates(run: Run) -> dict[str, float]:
    size = str(16 << 20 if run.quick else 256 << 20)
    kind = "pinned" if run.device == "cuda" else "plain"
    native = answer_of(program(COPIES, run.device, size, kind), native_env())
    with run.session() as session:
        proxied = answer_of(program(COPIES, "cuda", size, "plain"), session.env())
    return {f"{way}_{who}_gb_s": rates[way]
            for who, rates in (("native", native), ("proxied", proxied))
            for way in rates}  # fmt: skip


def copies(run: Run) -> dict[str, Any]:
    """Copies between host and device, proxied beside native ones from pinned memory."""
    return {"figures": _copy_rates(run)}


HOLDER = """
import hashlib, sys, torch
count, size = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(5)
state = [torch.randint(0, 2**31 - 1, (size // 4,), dtype=torch.int32, device="cuda")
         for _ in range(count)]
def digest():
    weights = torch.arange(1, 1025, device="cuda")
    sums = [(x.view(-1, 1024).sum(0, dtype=torch.int64) * weights).sum().item() for x in state]
    return hashlib.sha256(repr(sums).encode()).hexdigest()
for line in sys.stdin:
    if line.strip() == "change":
        state[0].add_(1)
    print(digest(), flush=True)
"""


class Holder:
    """A worker that holds so many bytes on the device and can say what they are."""

    def __init__(self, session: Standalone, count: int, size: int) -> None:
        self.process = subprocess.Popen(
            program(HOLDER, str(count), str(size)),
            env=session.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, question: str = "digest") -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().strip()
        except OSError:
            answer = ""
        if not answer:
            raise Wrong("the worker that holds the device's state ended")
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def _park(run: Run, way: str) -> dict[str, Any]:
    piece = 64 << 20
    count = 1 if run.quick else (4 if run.device == "cpu" else 64)
    park_s, resume_s, same = [], [], True
    with run.session() as session:
        holder = Holder(session, count, piece)
        try:
            holder.ask()
            for _ in range(2 if run.quick else 4):
                before = holder.ask("change")
                session.wait_warm()
                session.automatic = False
                parked = session.park(way)
                if parked["ways"] != [way]:
                    raise Wrong(f"parked by {parked['ways']} instead of by {way}")
                start = time.monotonic()
                session.attach()
                resume_s.append(time.monotonic() - start)
                park_s.append(parked["ms"] / 1e3)
                same = same and holder.ask() == before
        finally:
            holder.close()
    if not same:
        raise Wrong(f"the device's state was not the same after a park by {way}")
    size = count * piece
    return {
        f"park_{way}_s": statistics.median(park_s),
        f"resume_{way}_s": statistics.median(resume_s),
        f"park_{way}_gb_s": size / min(park_s) / 1e9,
        f"park_{way}_bytes": size,
    }


def park_by_copy(run: Run) -> dict[str, Any]:
    """Park and resume by a copy of what lives on the device; its content is compared."""
    figures = _park(run, "copy")
    if run.device == "cuda":
        pinned = _copy_rates(run)["d2h_native_gb_s"]
        figures["park_copy_ratio"] = figures["park_copy_gb_s"] / pinned
        if not run.quick and figures["park_copy_ratio"] < LEAST_PARK_RATE:
            raise Wrong(f"a park runs at {figures['park_copy_gb_s']:.1f} GB/s, less than "
                        f"{LEAST_PARK_RATE} of the pinned copy's {pinned:.1f}")  # fmt: skip
    return {"figures": figures}


def park_by_driver(run: Run) -> dict[str, Any]:
    """Park and resume by the driver's process checkpoint; the device's content is compared."""
    if not run.driver_library:
        raise Skip("the physical device is of type cpu, which has no driver")
    found = driver.describe(run.driver_library)
    if not found["available"]:
        raise Skip(str(found["reason"]))
    return {"figures": _park(run, "driver"), "driver_api": found["version"]}


def park_by_choice(run: Run) -> dict[str, Any]:
    """Which way is taken when both were measured, and why."""
    with run.session() as session:
        holder = Holder(session, 1, 64 << 20)
        try:
            holder.ask()
            ways = []
            for _ in range(4):
                session.automatic = False
                ways += session.park("auto")["ways"]
                session.attach()
            holder.ask()
        finally:
            holder.close()
        return {"ways": ways, "measured": json.loads(session.measured.to_json())["taken"]}


FIGURES: dict[str, Callable[[Run], dict[str, Any]]] = {
    "training_speed": training_speed,
    "round_trips": round_trips,
    "copies": copies,
    "park_by_copy": park_by_copy,
    "park_by_driver": park_by_driver,
    "park_by_choice": park_by_choice,
}
