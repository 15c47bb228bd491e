"""The report of one or several campaigns: flat keys as those of the benches, and what was
violated."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.__main__ import machine

from .campaign import Result, sum_up

BOUNDS: dict[str, tuple[str, float]] = {
    "violations": ("<=", 0),
    "lost_checkpoints": ("<=", 0),
    "leaked": ("<=", 0),
    "service_back_s_p95": ("<=", 3.0),
    "memory_growth": ("<=", 0.05),
    "fd_growth": ("<=", 0.05),
}
"""Key -> what the product promises of a campaign of an hour."""


def render(results: Sequence[Result], minutes: float, users: int) -> dict[str, Any]:
    """The report as one JSON object."""
    figures = sum_up(results)
    report: dict[str, Any] = {
        "benchmark": "chaos",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "sizes": {"minutes": minutes, "users": users},
        "seeds": [result.seed for result in results],
        "seconds": round(sum(result.seconds for result in results), 1),
    }
    for key, value in figures.items():
        report[key] = value if value is None else round(value, 4)
        if key in BOUNDS and value is not None:
            sign, bound = BOUNDS[key]
            report |= {f"{key}_bound": f"{sign} {bound:g}", f"{key}_kept": value <= bound}
    report["service_back_s"] = [[round(s, 2) for s in result.service_back] for result in results]
    report["by_name"] = by_name(results)
    report["violation_list"] = [
        {
            "seed": result.seed,
            "at": round(v.at, 2),
            "rule": v.rule,
            "subject": v.subject,
            "text": v.text,
        }
        for result in results
        for v in result.violations
    ]
    return report


def by_name(results: Sequence[Result]) -> dict[str, dict[str, int]]:
    """Kind ("fault", "verb", "refused", "skipped") -> name -> how often."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        for name, count in result.by_name.items():
            kind, _, rest = name.partition(" ")
            found.setdefault(kind, Counter())[rest] += count
    return {kind: dict(sorted(names.items())) for kind, names in sorted(found.items())}


def table(results: Sequence[Result]) -> Table:
    """Faults and verbs by name, for people."""
    shown = Table("step", "done", "refused", "skipped", title="what was done")
    found = by_name(results)
    for kind in ("fault", "verb"):
        for name in sorted({*found.get(kind, {})}):
            words = [found.get(k, {}).get(name, 0) for k in (kind, "refused", "skipped")]
            shown.add_row(f"{kind} {name}", *(str(n) for n in words))
    return shown


def write(report: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
