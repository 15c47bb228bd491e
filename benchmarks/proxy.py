"""What the device proxy costs: training, calls, copies, printing, parking, import, memory."""

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

from . import noticing
from .cores import cores, pin_proxies, run_on
from .figures import Figure

DESCRIPTION = "the device proxy: cost of training, calls, copies, printing, parking and import"
MODELS = ("gpt", "cnn", "mlp", "varshape", "gpt_compile")
ONE_CORE = {"gpt": 1.02, "cnn": 1.05, "mlp": 1.15, "varshape": 1.10, "gpt_compile": 1.02}
TWO_CORES = {"gpt": 1.00, "cnn": 1.00, "mlp": 1.00, "varshape": 1.05, "gpt_compile": 1.00}
BOUNDS = {
    **noticing.BOUNDS,
    **{f"{model}_ratio_one_core": bound for model, bound in ONE_CORE.items()},
    **{f"{model}_ratio_two_cores": bound for model, bound in TWO_CORES.items()},
    "journal_ratio_one_core": 1.05,
    "issue_us": 0.4,
    "sync_us_p50": 10.0,
    "repr_round_trips": 3.0,
    "import_extra_ms": 150.0,
    "rss_extra_mb": 30.0,
    "park_50mb_ms": 100.0,
    "kernel_first_cell_s": 3.0,
}
FLOORS = {"h2d_ratio": 0.8, "d2h_ratio": 0.8}
HERE = Path(__file__).parent
STEPS_PER_BLOCK = {"gpt": 1, "cnn": 3, "mlp": 150, "varshape": 2, "gpt_compile": 1}

MICRO = """
import json, sys, torch
torch.ones(1, device="cuda")
native = sys.modules["_singularity_native"]
native.{function}(200)
ns = sorted(native.{function}({n}))
print(json.dumps(ns[len(ns) // 2] / 1e3))
"""
PRINT = """
import json, sys, torch
native = sys.modules["_singularity_native"]
shapes = [(5,), (100_000,), (20, 20), (1000, 1000), (50, 60, 70)]
tensors = [torch.randn(shape, device="cuda") for shape in shapes]
trips = []
for _ in range(2):
    for tensor in tensors:
        torch.cuda.synchronize()
        before = native.stats(0)["sync_records"]
        shown = repr(tensor)
        trips.append(native.stats(0)["sync_records"] - before)
        host = repr(tensor.cpu())[:-1] + ", device='cuda:0')"
        assert shown.split() == host.split(), shown
print(json.dumps(trips))
"""
IMPORT = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
RESIDENT = """
import torch
x = torch.ones(1000, device="{device}")
for _ in range(100):
    x = (x * 1.5 + x).relu() / 2
x.sum().item()
for line in open("/proc/self/status"):
    if line.startswith("VmRSS"):
        print(int(line.split()[1]) / 1024)
"""
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
        "models": ["gpt", "mlp"] if quick else list(MODELS),
        "batch": {"gpt": 1 if quick else 8},
        "blocks": 4 if quick else 16,
        "runs": 1 if quick else 3,
        "pairs": 2 if quick else 5,
        "calls": 500 if quick else 5000,
        "copy_rounds": 3 if quick else 15,
        "state_mb": None if quick else 50,
        "kernel_starts": 2 if quick else 7,
    }


def alternate(
    model: str, count: int, size: dict[str, Any], *, journal_bytes: int | None = None
) -> float:
    """Seconds of a proxied step as a multiple of a native one, both on the same `count` cores: the
    median over the blocks of one process, paired block by block."""
    options = {} if journal_bytes is None else {"journal_bytes": journal_bytes}
    with Standalone(**options) as session:
        session.wait_warm()
        pin_proxies(session, count)
        command = [sys.executable, str(HERE / "alternate.py"), model]
        command += ["--blocks", str(size["blocks"]), "--steps", str(STEPS_PER_BLOCK[model])]
        command += ["--batch", str(size["batch"].get(model, 8))]
        seconds = json.loads(run_on(count, command, session.env()))
    pairs = zip(seconds["cuda"], seconds["cpu"], strict=True)
    return float(statistics.median(proxied / native for proxied, native in pairs))


def ratio(model: str, count: int) -> Callable[[dict[str, Any]], Figure]:
    def run(size: dict[str, Any]) -> Figure:
        if model not in size["models"]:
            return Figure(note="full runs only")
        if len(cores(count)) < count:
            return Figure(note=f"this machine has no {count} cores")
        return Figure([alternate(model, count, size) for _ in range(size["runs"])])

    return run


def journal_ratio(size: dict[str, Any]) -> Figure:
    """A step with the journal as a multiple of one without, on one core."""
    values = []
    for _ in range(size["runs"]):
        with_journal = alternate("gpt", 1, size)
        values.append(with_journal / alternate("gpt", 1, size, journal_bytes=0))
    return Figure(values)


def micro(function: str, calls: Callable[[dict[str, Any]], int]) -> Callable[..., Figure]:
    """Median microseconds of one of the native module's own measurements, on one core."""

    def run(size: dict[str, Any]) -> Figure:
        medians = []
        for _ in range(size["pairs"]):
            with Standalone() as session:
                session.wait_warm()
                pin_proxies(session, 1)
                code = MICRO.format(function=function, n=calls(size))
                medians.append(json.loads(run_on(1, [sys.executable, "-c", code], session.env())))
        return Figure(medians)

    return run


def copies(size: dict[str, Any]) -> dict[str, Figure]:
    """Rate of a copy as a multiple of two memcpys, per size; the worst one has the bound."""
    with Standalone() as session:
        session.wait_warm()
        command = [sys.executable, str(HERE / "copies.py"), "--rounds", str(size["copy_rounds"])]
        by_size = json.loads(run_on(2, command, session.env()))
    figures = {}
    for way in ("h2d", "d2h"):
        per_size = {
            int(number): [two / one for two, one in zip(took["memcpys"], took[way], strict=True)]
            for number, took in by_size.items()
        }
        figures[f"{way}_ratio"] = Figure(min(per_size.values(), key=statistics.median))
        for number, ratios in per_size.items():
            figures[f"{way}_ratio_{number >> 20}_mib"] = Figure(ratios)
    return figures


def repr_round_trips(size: dict[str, Any]) -> Figure:
    with Standalone() as session:
        session.wait_warm()
        trips = json.loads(run_on(2, [sys.executable, "-c", PRINT], session.env()))
    return Figure([float(max(trips))])


def park(size: dict[str, Any]) -> Figure:
    """From the command to the end of the proxy process, when the device is free."""
    if size["state_mb"] is None:
        return Figure(note="full runs only")
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
                ("without", lambda: run_on(1, [sys.executable, "-c", IMPORT])),
                ("with", lambda: run_on(1, [sys.executable, "-c", IMPORT], session.env())),
            ]
            took = {name: float(run()) for name, run in (runs if pair % 2 == 0 else runs[::-1])}
            extra.append((took["with"] - took["without"]) * 1e3)
    return Figure(extra)


def rss_extra(size: dict[str, Any]) -> Figure:
    """Resident memory of a worker beyond that of the same program without a proxy, in MB."""
    extra = []
    with Standalone() as session:
        session.wait_warm()
        for _ in range(size["runs"]):
            code = {device: RESIDENT.format(device=device) for device in ("cpu", "cuda")}
            native = float(run_on(1, [sys.executable, "-c", code["cpu"]]))
            extra.append(
                float(run_on(1, [sys.executable, "-c", code["cuda"]], session.env())) - native
            )
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
    parts: dict[str, Callable[[dict[str, Any]], Figure]] = {}
    for model in MODELS:
        parts[f"{model}_ratio_one_core"] = ratio(model, 1)
        parts[f"{model}_ratio_two_cores"] = ratio(model, 2)
    parts |= {
        "journal_ratio_one_core": journal_ratio,
        "issue_us": micro("time_issue", lambda size: size["calls"] // 50),
        "sync_us_p50": micro("time_round_trips", lambda size: size["calls"]),
        "repr_round_trips": repr_round_trips,
        "import_extra_ms": import_extra,
        "rss_extra_mb": rss_extra,
        "park_50mb_ms": park,
    }
    for key, run in parts.items():
        say(f"measuring {key} ...")
        figures[key] = run(size)
    say("measuring copies ...")
    figures |= copies(size)
    say("measuring how soon the agent notices ...")
    figures |= await noticing.measure(1 if quick else 5)
    say("measuring kernel_first_cell_s ...")
    figures["kernel_first_cell_s"] = await kernel_first_cell(size)
    return figures
