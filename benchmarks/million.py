"""A million devices for a week, one process for each region, as many at a time as there are cores.

Clusters are empty when it begins. Jobs of one region do not go to another one here; what that costs
is in `./dev bench scheduler` (`route_ms_*`) and in `jupyter singularity simulate --regions`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from singularity_scheduler import compiled

from . import replays
from .figures import Figure

DESCRIPTION = "a million devices for a week through the policy of the scheduler; takes long"
BOUNDS = {"million_s": 3600.0, "million_rss_gb": 16.0}
FLOORS: dict[str, float] = {}


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "regions": 2 if quick else 20,
        "region_devices": 5000 if quick else 50_000,
        "region_clusters": 2 if quick else 10,
        "days": 0.25 if quick else 7.0,
        "engine": compiled.use(),
    }


async def measure(quick: bool, say: Callable[[str], object]) -> dict[str, Figure]:
    """Called by the driver; `say` prints a line of progress."""
    size = sizes(quick)
    shape = (size["region_devices"], size["region_clusters"], size["days"])
    say(f"replaying {size['regions']} regions ...")
    clock = replays.Clock()
    each = replays.beside(replays.span, [(*shape, seed) for seed in range(size["regions"])])
    wall_s = clock.read()["s"]
    largest = sorted((found["rss_gb"] for found in each), reverse=True)
    figures = {
        "million_s": wall_s,
        "million_cpu_s": sum(found["cpu_s"] for found in each),
        "million_rss_gb": sum(largest[: os.cpu_count()]),
        "million_events": sum(found["events"] for found in each),
        "million_submissions": sum(found["submissions"] for found in each),
        "million_preemptions": sum(found["preemptions"] for found in each),
    }
    return {key: Figure([value]) for key, value in figures.items()}
