"""`python -m singularity_proxy.gpu`: run all checks and measurements, write one JSON report.

Exit code 0: everything passed, or nothing could be tried here (the report then says why under
"skipped"); 1: something failed; 2: a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import site
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from singularity_proxy.checkpoint.device import driver

from .checks import CHECKS, Run, Wrong, answer_of, attempt, native_env, program
from .figures import FIGURES

ALL = {**CHECKS, **FIGURES}
HOOK_FILE = "singularity_proxy.pth"
"""What an installation puts into site-packages: the line that loads the worker's hook."""
LOOK = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "git": torch.version.git_version}
if torch.version.cuda is None:
    found["reason"] = "this PyTorch is built without CUDA"
elif not torch.cuda.is_available():
    found["reason"] = "PyTorch finds no usable NVIDIA GPU (no device, or its driver is too old)"
else:
    p = torch.cuda.get_device_properties(0)
    found |= {"gpu": p.name, "gpu_memory": p.total_memory, "capability": f"{p.major}.{p.minor}",
              "gpus": torch.cuda.device_count(), "cudnn": torch.backends.cudnn.version()}
print(json.dumps(found))
"""


def machine() -> dict[str, Any]:
    """What the report is about: hardware, driver, versions."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "nvidia_driver": _first_line("/proc/driver/nvidia/version"),
        "ptrace_scope": _first_line("/proc/sys/kernel/yama/ptrace_scope"),
        "driver_checkpoint": driver.describe(),
    }
    try:
        found |= answer_of(program(LOOK), native_env())
    except Wrong as error:
        found |= {"torch": None, "reason": f"PyTorch does not start: {error}"}
    return found


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return None


@contextlib.contextmanager
def hook_in_children() -> Iterator[None]:
    """Have all Python processes that start from this one load the worker's hook, on a machine where
    nothing is installed: a `sitecustomize` in PYTHONPATH does what an installation's line does."""
    if any((Path(folder) / HOOK_FILE).exists() for folder in site.getsitepackages()):
        yield
        return
    package = Path(__file__).resolve().parents[1]
    before = os.environ.get("PYTHONPATH", "")
    with tempfile.TemporaryDirectory(prefix="singularity-gpu-") as folder:
        line = (package.parent / HOOK_FILE).read_text()
        (Path(folder) / "sitecustomize.py").write_text(line)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
        try:
            yield
        finally:
            os.environ["PYTHONPATH"] = before


def report_of(run: Run, names: list[str], say: Any) -> dict[str, Any]:
    """The whole report; `say(name, entry)` hears of each check as it ends."""
    facts = machine()
    report: dict[str, Any] = {
        "report": "gpu",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": run.device,
        "quick": run.quick,
        "machine": facts,
    }
    reason = facts.pop("reason", None)
    if facts["torch"] is None or (run.device == "cuda" and reason):
        return report | {"skipped": f"{reason}, so nothing was tried."}
    entries: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    for name in names:
        entries[name] = entry = attempt(ALL[name], run)
        figures |= entry.pop("figures", {})
        say(name, entry)
    counts = {status: sum(e["status"] == status for e in entries.values())
              for status in ("passed", "failed", "skipped")}  # fmt: skip
    return report | {"counts": counts, "checks": entries, "figures": figures}


def main(arguments: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m singularity_proxy.gpu", description="Prove and measure the device proxy."
    )
    parser.add_argument("--json", metavar="FILE", help="write the report here (default: stdout)")
    parser.add_argument("--quick", action="store_true", help="small sizes; rates are not judged")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu tries the runner itself, without a GPU")  # fmt: skip
    parser.add_argument("--driver-library", default=None, metavar="PATH",
                        help="the CUDA driver (default on cuda: libcuda.so.1)")  # fmt: skip
    parser.add_argument("only", nargs="*", metavar="CHECK", help=f"of {', '.join(ALL)}")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.only if name not in ALL]:
        parser.error(f"there is no check {', '.join(unknown)}; there are {', '.join(ALL)}")
    library = options.driver_library
    if library is None:
        library = driver.LIBRARY if options.device == "cuda" else ""

    def say(name: str, entry: dict[str, Any]) -> None:
        why = f": {entry['reason']}" if "reason" in entry else ""
        print(f"{entry['status']:>8} {entry['seconds']:7.1f} s  {name}{why}", file=sys.stderr)

    run = Run(options.device, options.quick, library)
    with hook_in_children():
        report = report_of(run, options.only or list(ALL), say)
    text = json.dumps(report, indent=2) + "\n"
    if options.json:
        Path(options.json).write_text(text)
    else:
        print(text, end="")
    if "skipped" in report:
        print(f"skipped: {report['skipped']}", file=sys.stderr)
        return 0
    return 1 if report["counts"]["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
