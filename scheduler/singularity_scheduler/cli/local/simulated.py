"""What `simulate` shows of its results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from singularity_scheduler.cli.framework.tables import Column, Table

if TYPE_CHECKING:
    from singularity_scheduler.sim.compare import Result, Setup


def described(setup: Setup, tiers: str, seed: int) -> dict[str, Any]:
    """What was replayed on what, for the file of figures."""
    return {
        "trace": setup.trace.name,
        "trace_format": str(setup.trace.facts.get("format", "")),
        "nodes": setup.cluster.nodes,
        "devices": setup.cluster.devices,
        "clusters": setup.clusters,
        "regions": setup.regions,
        "leave_s": setup.costs.leave_s,
        "back_s": setup.costs.back_s,
        "elsewhere_s": setup.costs.elsewhere_s,
        "tiers": tiers,
        "seed": seed,
        **{
            f"parameter.{name}": json.dumps(value) if isinstance(value, list) else value
            for name, value in setup.parameters.as_dict().items()
        },
    }


def headline(setup: Setup) -> str:
    """What is replayed on what, for people."""
    count = setup.limit or setup.trace.count
    cluster, costs = setup.cluster, setup.costs
    jobs = "jobs" if count is None else f"{count:,} jobs"
    skipped = "".join(f"; skipped {n:,}: {why}" for why, n in setup.trace.skipped.items())
    parts = f" in {setup.clusters} clusters" if setup.clusters > 1 else ""
    return (
        f"{setup.trace.name}: {jobs} on {cluster.devices:,} devices ({cluster.nodes:,} nodes of "
        f"{cluster.devices_per_node}{parts}); a preemption takes {costs.leave_s:g} s to leave and "
        f"{costs.back_s:g} s to come back{skipped}"
    )


SHARES = ("used_while_submitted", "sla_premium_kept_share", "sla_standard_kept_share")


def table(results: list[Result]) -> Table:
    """A row for each policy."""
    from singularity_scheduler.sim.compare import BOUND

    columns = (
        Column("policy", style="bold"),
        Column("JCT mean", right=True),
        Column("p50", right=True),
        Column("p95", right=True),
        Column("p99", drop=5, right=True),
        Column("to oracle", right=True),
        Column("used", right=True),
        Column("premium", right=True),
        Column("standard", drop=3, right=True),
        Column("resume p95", drop=4, right=True),
        Column("preempted", drop=2, right=True),
        Column("moved", drop=1, right=True),
        Column("fragments", drop=6, right=True),
        Column("events/s", drop=7, right=True),
    )
    found = {result.policy: result.summary for result in results}
    bound = found.get(BOUND, {}).get("jct_s_mean")
    rows = []
    for policy, s in found.items():
        mean: Any = s["jct_s_mean"]
        rows.append(
            [
                policy,
                *(_time(s[f"jct_s_{name}"]) for name in ("mean", "p50", "p95", "p99")),
                f"{mean / bound:.2f}" if mean is not None and bound else "-",
                *(_percent(s[key]) for key in SHARES),
                _time(s["resume_wait_s_p95"]),
                *(f"{s[key]:,}" for key in ("preemptions", "migrations")),
                _percent(s["fragmentation_share"]),
                f"{s['events_s'] or 0:,.0f}",
            ]
        )
    return Table(columns, rows)


def sentences(results: list[Result]) -> list[str]:
    """What the table cannot say by itself."""
    from singularity_scheduler.sim.compare import BOUND, OURS

    found = {result.policy: result.summary for result in results}
    lines = []
    ours: Any = found.get(OURS, {}).get("jct_s_mean")
    bound: Any = found.get(BOUND, {}).get("jct_s_mean")
    if ours and bound:
        lines.append(
            f"The mean JCT of {OURS} is {ours / bound:.2f} times that of {BOUND}, which is told "
            "how long jobs are."
        )
    for result in results:
        refused, finished = result.record.refusals, result.record.finished
        stuck = result.record.submissions - finished
        if refused:
            lines.append(
                f"{result.policy}: {refused:,} jobs ask for more devices than a cluster has."
            )
        if stuck:
            lines.append(f"{result.policy}: {stuck:,} jobs never ended.")
    lines.append(
        '"premium" and "standard" are the windows in which the tier\'s guarantee was kept; all of '
        "it: --json FILE."
    )
    return lines


def _time(seconds: Any) -> str:
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _percent(share: Any) -> str:
    return "-" if share is None else f"{100 * share:.4g} %"
