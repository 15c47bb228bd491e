"""The policy of the scheduler, replayed: how fast it decides, what it promises, and other policies.

Public traces are not part of the product. Those of Philly (`philly.csv`) and openb
(`openb_node_list_gpu_node.csv`, `openb_pod_list_default.csv`), plain or gzip, are looked for below
the folder that the environment variable SINGULARITY_TRACES names; without them their keys are left
out. Everything else is seeded and synthetic.

JCTs are compared with all jobs of one tier, because the other policies know no tiers; ours with
tiers has keys that end in `_tiers`. Everybody pays 30 s to leave and 30 s to come back. Philly is
replayed on 416 devices there, of which its jobs ask for 90 %: on 2,500, nobody ever waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from singularity_scheduler import compiled
from singularity_scheduler.sim import compare

from . import admissions, replays
from .figures import Figure
from .replays import RIVALS, Comparison, Figures, Traces

DESCRIPTION = "the policy of the scheduler: speed of decisions, guarantees, JCT of other policies"
BOUNDS = {
    "scale100k_s": 360.0,
    "scale100k_rss_gb": 4.0,
    "decision_ms_p50": 1.0,
    "decision_ms_p99": 10.0,
    "decision_ms_max": 100.0,
    "route_ms_p99": 5.0,
    "submit_to_start_s_p99": 1.0,
    "resume_wait_s_p95": 5.0,
    "jct_vs_tiresias": 1.0,
    "jct_vs_maxmin": 1.0,
    "jct_vs_srtf": 1.0,
    "jct_vs_tiresias_mix": 1.0,
    "jct_vs_maxmin_mix": 1.0,
    "jct_vs_srtf_mix": 1.0,
    "fragmentation_vs_bestfit": 1.0,
    "fragmentation_vs_fgd": 1.0,
}
FLOORS = {
    "philly_events_s": 20_000.0,
    "admissions_s": 200.0,
    "premium_sla_kept": 0.999,
    "notebook_busy_share": 0.70,
}
Say = Callable[[str], object]


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "philly_devices": 2500,
        "philly_jobs": 5000 if quick else None,
        "philly_loaded_devices": 416,
        "scale_regions": 2 if quick else 10,
        "scale_region_devices": 2000 if quick else 10_000,
        "scale_region_clusters": 2 if quick else 10,
        "scale_region_jobs": 4000 if quick else 330_000,
        "decision_nodes": 100 if quick else 1000,
        "decision_sessions": 500 if quick else 5000,
        "decision_jobs": 3000 if quick else 30_000,
        "route_clusters": 100,
        "route_regions": 10,
        "route_submissions": 3000 if quick else 30_000,
        "route_submissions_s": 1000,
        "notebook_devices": 866,
        "notebook_days": 2 if quick else 30,
        "mix_devices": 64 if quick else 256,
        "mix_days": 3 if quick else 30,
        "restart_s": [replays.RESTART.leave_s, replays.RESTART.back_s],
        "checkpoint_s": list(compare.MEASURED.triple),
        "fragmentation_seeds": 1 if quick else 5,
        "engine": compiled.use(),
    }


def speed(size: dict[str, Any], say: Say) -> Figures:
    """Replays of synthetic jobs, one process for each region, as many at a time as there are
    cores; decisions and routing alone, in CPU time."""
    say("deciding in one cluster ...")
    given = (size["decision_nodes"], size["decision_sessions"], size["decision_jobs"])
    found = replays.apart(replays.decisions, *given)
    figures = {f"decision_ms_{name}": found[name] for name in ("p50", "p99", "max")}
    figures["decision_sessions"] = found["sessions"]
    say("routing ...")
    regions = size["route_regions"]
    count, per_s = size["route_submissions"], float(size["route_submissions_s"])
    found = replays.apart(replays.routing, 100_000, size["route_clusters"], regions, count, per_s)
    figures |= {"route_ms_p99": found["p99"], "route_ms_max": found["max"]}
    say(f"replaying {size['scale_regions']} regions ...")
    shape = (size["scale_region_devices"], size["scale_region_clusters"], 1)
    clock = replays.Clock()
    each = replays.beside(
        replays.scale,
        [(*shape, size["scale_region_jobs"], seed) for seed in range(size["scale_regions"])],
    )
    figures["scale100k_s"] = clock.read()["s"]
    figures["scale100k_cpu_s"] = sum(found["cpu_s"] for found in each)
    figures["scale100k_events"] = sum(found["events"] for found in each)
    largest = sorted((found["rss_gb"] for found in each), reverse=True)
    figures["scale100k_rss_gb"] = sum(largest[: os.cpu_count()])
    return figures


def philly(size: dict[str, Any], path: Path, say: Say) -> Figures:
    """The whole trace: how fast, and what tiers got at 90 % load."""
    say("replaying Philly ...")
    limit, loaded = size["philly_jobs"], size["philly_loaded_devices"]
    fast = replays.apart(replays.philly_speed, path, size["philly_devices"], limit)
    say("replaying Philly at 90 % load ...")
    kept = replays.apart(replays.guarantees, path, loaded, limit)
    return {
        "philly_s": fast["s"],
        "philly_cpu_s": fast["cpu_s"],
        "philly_events": fast["events"],
        "philly_events_s": fast["events"] / fast["s"],
        "philly_events_cpu_s": fast["events"] / fast["cpu_s"],
        "premium_sla_kept": kept["sla_premium_kept_share"],
        "premium_sla_windows": kept["sla_premium_windows"],
        "standard_sla_kept": kept["sla_standard_kept_share"],
    }


def notebooks(size: dict[str, Any], say: Say) -> Figures:
    """What idle reclaim makes of the devices that notebooks would reserve."""
    say("replaying notebooks ...")
    found = replays.apart(replays.notebook_days, size["notebook_devices"], size["notebook_days"])
    return {
        "notebook_busy_share": found["busy_share_of_held"],
        "resume_wait_s_p95": found["resume_wait_s_p95"],
        "resume_wait_s_p50": found["resume_wait_s_p50"],
        "notebook_held_share": found["held_share"],
    }


def jcts(comparison: Comparison, end: str, say: Say) -> Figures:
    """Mean JCT of ours over theirs. With the trace of a cluster also of ours with tiers."""
    policies = [(compare.OURS, False), (compare.OURS, True)]
    policies += [(policy, False) for policy in RIVALS.values()]
    say(f"comparing {len(policies)} replays ...")
    runs = replays.beside(replays.jct, [(comparison, *policy) for policy in policies])
    ours, tiers, *others = (run["jct_s_mean"] for run in runs)
    figures = {f"jct_s{end}": ours, f"jct_s_tiers{end}": tiers}
    for name, theirs in zip(RIVALS, others, strict=True):
        figures[f"jct_vs_{name}{end}"] = ours / theirs
        figures[f"jct_vs_{name}_tiers{end}"] = tiers / theirs
    return figures


async def measure(quick: bool, say: Say) -> dict[str, Figure]:
    """Called by the driver; `say` prints a line of progress."""
    size, traces = sizes(quick), Traces.found()
    missing = [name for name, path in vars_of(traces).items() if path is None]
    if missing:
        say(
            f"{', '.join(missing)} not found below {replays.TRACES}, the folder with public traces:"
            " what needs them is left out"
        )
    found: Figures = {}
    if traces.philly is not None:
        found |= philly(size, traces.philly, say)
    found |= speed(size, say)
    found |= notebooks(size, say)
    mix = Comparison(None, size["mix_devices"], size["mix_days"])
    found |= jcts(mix, "_mix", say)
    if traces.philly is not None:
        devices = size["philly_loaded_devices"]
        found |= jcts(Comparison(traces.philly, devices, 0.0, size["philly_jobs"]), "", say)
    if traces.openb_nodes is not None and traces.openb_pods is not None:
        say("packing openb ...")
        files = (traces.openb_nodes, traces.openb_pods)
        packed = replays.apart(replays.fragmentation, *files, size["fragmentation_seeds"])
        found |= {f"fragmentation_vs_{name}": value for name, value in packed.items()}
    figures = {key: Figure([value]) for key, value in found.items()}
    served = await admissions.measure(quick, say)
    wanted = ("admissions_s", "submit_to_start_s_p99")
    return figures | {key: served[key] for key in wanted}


def vars_of(traces: Traces) -> dict[str, Path | None]:
    """File for people -> where it was found."""
    return {
        "philly.csv": traces.philly,
        "openb_node_list_gpu_node.csv": traces.openb_nodes,
        "openb_pod_list_default.csv": traces.openb_pods,
    }
