"""`./dev bench NAME [--quick] [--json FILE]`: measure one part of the product and print a table.

Every benchmark is a module with `DESCRIPTION`, `BOUNDS` (key -> largest value that the product
promises), `FLOORS` (key -> smallest, if there are any) and `measure(quick, say) -> {key: Figure}`.
A report is one flat JSON object: the keys, each figure's spread under `KEY_spread`, and what was
measured where and when. Bounds are judged on full runs only, and only printed: behaviour is the
tests' business.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import importlib
import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .figures import Figure

NAMES = (
    *("proxy", "elastic", "api", "checkpoint", "admissions", "batch", "scheduler", "million", "ui"),
    *("service", "setup", "house"),
)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [
            x.split(":", 1)[1].strip()
            for x in info.read_text().splitlines()
            if x.startswith("model name")
        ]
        model = lines[0] if lines else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def judge(
    key: str, quoted: float | None, bounds: dict[str, float], floors: dict[str, float]
) -> tuple[str, bool]:
    """(the promise in words, whether `quoted` keeps it)."""
    if key in floors:
        return f">= {floors[key]:g}", quoted is not None and quoted >= floors[key]
    if key in bounds:
        return f"<= {bounds[key]:g}", quoted is not None and quoted <= bounds[key]
    return "", True


def show(
    name: str,
    figures: dict[str, Figure],
    bounds: dict[str, float],
    floors: dict[str, float],
    quick: bool,
) -> Table:
    table = Table(
        title=f"bench {name}"
        + (" (quick: sizes are smaller, bounds are not judged)" if quick else "")
    )
    for column in ("key", "median or worst", "min .. max", "runs", "bound", ""):
        table.add_column(column, justify="left" if column == "key" else "right")
    for key, figure in figures.items():
        promise, kept = judge(key, figure.quoted, bounds, floors)
        judged = ""
        if not quick and promise and figure.quoted is not None:
            judged = "ok" if kept else "MISSED"
        shown = "-" if figure.quoted is None else f"{figure.quoted:.4g}"
        spread = f"{figure.low:.4g} .. {figure.high:.4g}" if figure.values else figure.note
        table.add_row(
            key,
            shown,
            spread,
            str(len(figure.values)),
            promise,
            judged,
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench")
    parser.add_argument("name", nargs="?", choices=NAMES)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, at most 60 s")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    options = parser.parse_args()
    if options.name is None:
        for name in NAMES:
            print(f"{name}: {importlib.import_module(f'benchmarks.{name}').DESCRIPTION}")
        return 0
    # A shell starts background jobs with these ignored, which only this thread could undo for the
    # processes that a benchmark's services start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    module = importlib.import_module(f"benchmarks.{options.name}")
    console = Console(stderr=True)
    figures: dict[str, Figure] = asyncio.run(module.measure(options.quick, console.print))
    report: dict[str, Any] = {
        "benchmark": options.name,
        "quick": options.quick,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "sizes": module.sizes(options.quick),
    }
    floors: dict[str, float] = getattr(module, "FLOORS", {})
    for key, figure in figures.items():
        report[key] = figure.quoted
        report[f"{key}_spread"] = figure.spread()
        promise, kept = judge(key, figure.quoted, module.BOUNDS, floors)
        if promise and figure.quoted is not None and not options.quick:
            report |= {f"{key}_bound": promise, f"{key}_kept": kept}
    Console(width=110).print(show(options.name, figures, module.BOUNDS, floors, options.quick))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1) + "\n")
        print(f"written: {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
