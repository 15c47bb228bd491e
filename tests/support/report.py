"""The dated reports of `./dev test --full` and `--torch=cuda-build` in benchmarks/results/."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from _pytest.reports import TestReport
from support import second_tries, tiers

_OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def _commit(root: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def torch_version() -> str:
    """Of this environment, with its build as in 2.11.0+cu130, which PyPI's own metadata lack."""
    version = Path(str(importlib.metadata.distribution("torch").locate_file("torch/version.py")))
    found = re.search(r"^__version__ = '([^']+)'", version.read_text(), re.MULTILINE)
    return found[1] if found else importlib.metadata.version("torch")


def _skip_reason(report: TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def render(
    stats: Mapping[str, Sequence[TestReport]],
    duration_s: float,
    seed: int,
    commit: str,
    today: datetime.date,
    name: str | None = None,
) -> str:
    """The report as Markdown: machine, counts, what tests measured (`record_property`), time per
    tier and folder, second tries by test, slowest tests, reasons of skips. `name` says of what it
    is, None of the whole suite."""
    counts = {name: len(stats.get(name, ())) for name in _OUTCOMES}
    folders: dict[str, list[float]] = defaultdict(list)
    by_tier: dict[str, list[float]] = defaultdict(list)
    slow: list[tuple[float, str]] = []
    for outcome in ("passed", "failed"):
        for report in stats.get(outcome, ()):
            folders["/".join(report.nodeid.split("/")[:2])].append(report.duration)
            if tiers.find_tiers(report.nodeid):  # what failed of the run itself has none
                by_tier[tiers.find_tier(report.nodeid)].append(report.duration)
            slow.append((report.duration, report.nodeid))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    user = "root" if os.geteuid() == 0 else "not root"
    lines = [
        f"# {f'Test run ({name})' if name else 'Full test run'} of {today.isoformat()}",
        "",
        f"Commit {commit} · Python {platform.python_version()}"
        f" · torch {torch_version()} · Linux {platform.release()}"
        f" · {os.cpu_count()} CPUs, {memory:.0f} GiB · {user}"
        f" · seed {seed}",
        "",
        ", ".join(f"{n} {name}" for name, n in counts.items() if n) + f" in {duration_s:.0f} s",
        "",
        "| tier or folder | tests | seconds |",
        "|---|---|---|",
    ]
    for groups in (by_tier, folders):
        lines += [f"| {name} | {len(t)} | {sum(t):.1f} |" for name, t in sorted(groups.items())]
    measured = dict(p for report in stats.get("passed", ()) for p in report.user_properties)
    lines += [""] + [f"- {key}: {value}" for key, value in measured.items()]
    for kind in ("failed", "error"):
        lines += [f"- {kind}: `{report.nodeid}`" for report in stats.get(kind, ())]
    tries = second_tries.count_second_tries(r.nodeid for r in stats.get("rerun", ()))
    lines += ["", f"Second tries: {sum(count for _, count in tries)}", ""]
    lines += [f"- {count} `{nodeid}`" for nodeid, count in tries]
    lines += ["", "Slowest tests:", ""]
    lines += [f"- {s:.1f} s `{nodeid}`" for s, nodeid in sorted(slow, reverse=True)[:20]]
    skipped = stats.get("skipped", ())
    if skipped:
        lines += ["", "Skipped:", ""]
        lines += [f"- `{report.nodeid}`: {_skip_reason(report)}" for report in skipped]
    return "\n".join(lines) + "\n"


def write(
    root: Path,
    stats: Mapping[str, Sequence[TestReport]],
    duration_s: float,
    seed: int,
    name: str | None = None,
) -> Path:
    """Writes today's report (a second run on one day replaces the first) and returns its path."""
    today = datetime.datetime.now(datetime.timezone.utc).date()
    path = (
        root
        / "benchmarks"
        / "results"
        / f"{today.isoformat()}-tests{f'-{name}' if name else ''}.md"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(stats, duration_s, seed, _commit(root), today, name))
    return path
