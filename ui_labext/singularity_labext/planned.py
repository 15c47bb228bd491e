"""What those who stop servers and kernels are going to do, as far as this server knows it: so that
a notebook can say so before. Pure; for the page, which asks by `GET planned`.

* The Hub's culler stops servers that are older than its limit, whatever they do. The Spawner says
  when that is in the environment.
* Jupyter's own culling (``MappingKernelManager.cull_idle_timeout``) shuts idle kernels down, which
  ends their sessions. It spares kernels that a page is connected to, unless it is told not to.

Not here: the Hub's limit for idle servers. A page that is open keeps its server from being idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from singularity_scheduler.client.words import duration

Json = dict[str, Any]

UNTIL = "SINGULARITY_SERVER_UNTIL"
"""In the environment of a server: when the Hub stops it at the earliest, UNIX seconds."""

AGAIN_S = 30
"""After so many seconds plans that depend on what kernels do are worth asking for again."""


@dataclass(frozen=True)
class Kernel:
    """What culling looks at."""

    id: str
    last_activity: datetime
    busy: bool
    connections: int
    limit_s: float
    """After so long without activity it is shut down; 0: never."""


@dataclass(frozen=True)
class Rules:
    """How this server is stopped, and its kernels."""

    until: float | None = None
    """When the server is stopped at the earliest, UNIX seconds; None: nobody has said."""
    hibernates: bool = False
    """Whether its kernels are suspended then, and not ended."""
    culls: bool = False
    """Whether kernels that are idle are shut down."""
    culls_connected: bool = False
    culls_busy: bool = False


def planned(kernels: Iterable[Kernel], rules: Rules) -> dict[str, Json]:
    """Kernel id -> what comes first, with the keys of a session's `planned`; kernels for which
    nothing is planned are not there."""
    found = {}
    for kernel in kernels:
        plans = [plan for plan in (_of_server(rules), _of_kernel(kernel, rules)) if plan]
        if plans:
            found[kernel.id] = min(plans, key=lambda plan: str(plan["at"]))
    return found


def again_s(rules: Rules) -> int | None:
    """When to ask again; None: not before there is another kernel."""
    return AGAIN_S if rules.culls and rules.culls_connected else None


def until_of(environment: Mapping[str, str]) -> float | None:
    """What the Spawner has said; None: nothing that is a time."""
    try:
        return float(environment[UNTIL])
    except (KeyError, ValueError):
        return None


def _of_server(rules: Rules) -> Json | None:
    if rules.until is None:
        return None
    return {
        "what": "suspend" if rules.hibernates else "end",
        "at": _text(datetime.fromtimestamp(rules.until, timezone.utc)),
        "rule": "server.age",
        "why": "the Hub stops its server, which is as old as servers may be",
    }


def _of_kernel(kernel: Kernel, rules: Rules) -> Json | None:
    spared = (kernel.busy and not rules.culls_busy) or (
        kernel.connections and not rules.culls_connected
    )
    if not rules.culls or kernel.limit_s <= 0 or spared:
        return None
    return {
        "what": "end",
        "at": _text(kernel.last_activity + timedelta(seconds=kernel.limit_s)),
        "rule": "kernel.idle",
        "why": f"nothing is asked of it, and Jupyter shuts kernels down that are idle for "
        f"{duration(kernel.limit_s)} (cull_idle_timeout); run a cell to keep it",
    }


def _text(at: datetime) -> str:
    return at.astimezone(timezone.utc).isoformat(timespec="milliseconds")
