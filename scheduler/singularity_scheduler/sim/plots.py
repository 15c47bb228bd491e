"""Plots of replays, each as PNG and SVG. Colours are those of Okabe and Ito, which people with any
colour vision tell apart; lines differ in their dashes too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from singularity_scheduler.core.allocation.claims import TIERS
from singularity_scheduler.core.values.parameters import Parameters

from .compare import Result
from .extras import need

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
DAY_S = 86_400.0
BINS = 120
"""Most points of a line over time: each is a mean."""


def draw(folder: Path, results: Sequence[Result], parameters: Parameters) -> list[Path]:
    """All plots to `folder`, which is made; the files. Raises `Unsupported` without matplotlib."""
    matplotlib: Any = need("matplotlib", "a plot")
    matplotlib.use("Agg")
    pyplot: Any = need("matplotlib.pyplot", "a plot")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    plots: dict[str, Callable[[Any], None]] = {
        "utilisation": lambda axes: _utilisation(axes, results),
        "jct_cdf": lambda axes: _jct(axes, results),
        "sla": lambda axes: _sla(axes, results, parameters),
    }
    for name, plot in plots.items():
        figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
        plot(axes)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            figure.savefig(path, dpi=150)
            written.append(path)
        pyplot.close(figure)
    return written


def _line(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "linewidth": 1.8,
    }


def _legend(axes: Any, results: Sequence[Result]) -> None:
    if len(results) > 1:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handlelength=3.5)


def _utilisation(axes: Any, results: Sequence[Result]) -> None:
    for number, result in enumerate(results):
        record = result.record
        step = max(1, -(-len(record.series_s) // BINS))
        at, share = [], []
        for low in range(0, len(record.series_s), step):
            there = sum(record.series_capacity[low : low + step])
            if there:
                at.append(record.series_s[low] / DAY_S)
                share.append(100 * sum(record.series_busy[low : low + step]) / there)
        axes.plot(at, share, label=result.policy, **_line(number))
    axes.set_xlabel("time since the first submission (days)")
    axes.set_ylabel("devices that work is done on (%)")
    axes.set_ylim(0, 102)
    last = max((max(r.record.job_submit_s, default=0.0) for r in results), default=0.0)
    # Few jobs may go on for long after the last submission: they say nothing.
    axes.set_xlim(0, min(axes.get_xlim()[1], 1.25 * last / DAY_S) or None)
    axes.set_title("Utilisation over time")
    _legend(axes, results)


def _jct(axes: Any, results: Sequence[Result]) -> None:
    for number, result in enumerate(results):
        record = result.record
        rows = zip(record.job_end_s, record.job_submit_s, record.job_batch, strict=True)
        times = sorted(max(1.0, end - submit) / 3600 for end, submit, batch in rows if batch)
        count = len(times)
        axes.plot(
            times,
            [100 * (n + 1) / count for n in range(count)],
            label=result.policy,
            **_line(number),
        )
    axes.set_xscale("log")
    axes.set_xlabel("job completion time, from submission to end (hours, logarithmic)")
    axes.set_ylabel("batch jobs (%)")
    axes.set_ylim(0, 101)
    axes.set_title("Job completion times")
    _legend(axes, results)


def _sla(axes: Any, results: Sequence[Result], parameters: Parameters) -> None:
    tiers = [tier for tier in reversed(TIERS) if parameters.fraction(tier) > 0]
    width = 0.8 / len(results)
    for number, result in enumerate(results):
        kept = [100 * float(result.summary[f"sla_{tier}_kept_share"] or 0.0) for tier in tiers]
        places = [group - 0.4 + width * (number + 0.5) for group in range(len(tiers))]
        bars = axes.bar(
            places,
            kept,
            width * 0.92,
            label=result.policy,
            color=COLOURS[number % len(COLOURS)],
            edgecolor="black",
            linewidth=0.6,
            hatch=("", "//", "..", "xx", "\\\\")[number % 5],
        )
        axes.bar_label(bars, [f"{share:.4g}" for share in kept], padding=2, fontsize=8)
    names = [
        f"{tier}\n(at least {100 * parameters.fraction(tier):g} % of the time)" for tier in tiers
    ]
    axes.set_xticks(range(len(tiers)), names)
    axes.set_ylabel(f"windows of {parameters.sla_window_s / 60:g} min in which it was kept (%)")
    axes.set_ylim(0, 112)
    axes.set_title("Guarantee of the tiers kept")
    _legend(axes, results)
