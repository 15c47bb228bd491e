"""What the device proxy costs: training on one core, round trips, parking, kernel start, import."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from singularity_proxy.standalone import Standalone

from .figures import Figure

DESCRIPTION = "the device proxy: cost of training, round trips, parking, kernel start and import"
BOUNDS = {
    "gpt_ratio_one_core": 1.05,
    "sync_us_p50": 10.0,
    "park_50mb_ms": 100.0,
    "kernel_first_cell_s": 3.0,
    "import_extra_ms": 150.0,
}
TRAINING = Path(__file__).parent / "training.py"
ROUND_TRIPS = """
import json, sys, torch
torch.ones(1, device="cuda")
native = sys.modules["_singularity_native"]
native.time_round_trips(200)
ns = sorted(native.time_round_trips({n}))
print(json.dumps([ns[len(ns) // 2] / 1e3]))
"""
IMPORT = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
HOLD = """
import sys, torch
state = [torch.randn(1 << 18, device="cuda") for _ in range({mb})]
for _ in sys.stdin:  # something changes, so that every park writes the state anew
    state[0].add_(1)
    torch.cuda.synchronize()
    print("ready", flush=True)
"""


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "gpt": {"layers": 4, "width": 256, "batch": 1 if quick else 8, "steps": 5 if quick else 9},
        "pairs": 2 if quick else 15,
        "round_trips": 1000 if quick else 5000,
        "state_mb": None if quick else 50,
        "kernel_starts": 2 if quick else 15,
    }


def pinned(command: list[str], env: dict[str, str] | None = None) -> str:
    """Run `command` on one core; what it printed."""
    env = {**(env or os.environ), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        env=env,
        check=True,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, {core()}),
        text=True,
    )
    return done.stdout


def core() -> int:
    """The one core that worker and proxy share: the last one this process may use."""
    return max(os.sched_getaffinity(0))


def pin_proxies(session: Standalone) -> None:
    """Every device proxy, running or spare, onto the same core as its worker."""
    for pid in session.all_pids():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core()})


def gpt_step(device: str, size: dict[str, int]) -> float:
    """Median step seconds of one whole training process, the first steps left out."""
    command = [
        sys.executable,
        str(TRAINING),
        "gpt",
        device,
        "--steps",
        str(size["steps"]),
        "--batch",
        str(size["batch"]),
    ]
    if device == "cpu":
        out = pinned(command)
    else:
        with Standalone() as session:
            session.wait_warm()
            pin_proxies(session)
            out = pinned(command, session.env())
    seconds = json.loads(out)["seconds"]
    return float(statistics.median(seconds[2:]))


def gpt_ratio(size: dict[str, Any]) -> Figure:
    ratios = []
    for pair in range(size["pairs"]):
        order = ("cpu", "cuda") if pair % 2 == 0 else ("cuda", "cpu")
        took = {device: gpt_step(device, size["gpt"]) for device in order}
        ratios.append(took["cuda"] / took["cpu"])
    return Figure(ratios)


def round_trip(size: dict[str, Any]) -> Figure:
    medians = []
    for _ in range(size["pairs"]):
        with Standalone() as session:
            session.wait_warm()
            pin_proxies(session)
            code = ROUND_TRIPS.format(n=size["round_trips"])
            medians += json.loads(pinned([sys.executable, "-c", code], session.env()))
    return Figure(medians)


def park(size: dict[str, Any]) -> Figure:
    """From the command to the end of the proxy process, when the device is free."""
    if size["state_mb"] is None:
        return Figure(note="size-bound: full runs only")
    took = []
    with Standalone() as session:
        code = HOLD.format(mb=size["state_mb"])
        worker = subprocess.Popen(
            [sys.executable, "-c", code],
            env=session.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        for _ in range(size["pairs"]):
            session.wait_warm()
            worker.stdin.write("\n")
            worker.stdin.flush()
            worker.stdout.readline()
            took.append(session.park()["ms"])
        worker.stdin.close()
        worker.wait(30)
    return Figure(took)


def import_extra(size: dict[str, Any]) -> Figure:
    extra = []
    with Standalone() as session:
        session.wait_warm()
        for pair in range(size["pairs"]):
            runs: list[tuple[str, Callable[[], str]]] = [
                ("without", lambda: pinned([sys.executable, "-c", IMPORT])),
                ("with", lambda: pinned([sys.executable, "-c", IMPORT], session.env())),
            ]
            took = {name: float(run()) for name, run in (runs if pair % 2 == 0 else runs[::-1])}
            extra.append((took["with"] - took["without"]) * 1e3)
    return Figure(extra)


async def kernel_first_cell(size: dict[str, Any]) -> Figure:
    """From the request for a kernel on a running server to the result of its first cell."""
    from singularity_spawner.platform.notebook import Notebook
    from singularity_spawner.platform.platform import Platform
    from singularity_spawner.platform.ports import free_ports

    folder = Path(tempfile.mkdtemp(prefix="singularity-bench-", dir="/tmp"))
    os.chmod(folder, 0o755)
    took = []
    try:
        async with Platform(folder, devices=2, port=free_ports(1)[0]) as platform:
            url = await platform.start_server("bench", {"tier": "standard", "devices": 1})
            token = await platform.user_token("bench")
            for number in range(size["kernel_starts"] + 1):
                notebook = Notebook(url, token, "bench")
                start = time.perf_counter()
                await notebook.open()
                assert await notebook.run("print(6 * 7)") == "42\n"
                if number:  # the first start reads everything from disk
                    took.append(time.perf_counter() - start)
                await notebook.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Figure(took)


async def measure(quick: bool, say: Callable[[str], object]) -> dict[str, Figure]:
    """Called by the driver; `say` prints a line of progress."""
    size = sizes(quick)
    figures: dict[str, Figure] = {}
    for key, run in (
        ("gpt_ratio_one_core", gpt_ratio),
        ("sync_us_p50", round_trip),
        ("park_50mb_ms", park),
        ("import_extra_ms", import_extra),
    ):
        say(f"measuring {key} ...")
        figures[key] = run(size)
    say("measuring kernel_first_cell_s ...")
    figures["kernel_first_cell_s"] = await kernel_first_cell(size)
    return figures
