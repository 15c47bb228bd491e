"""What the scheduler knows of the sessions of the server before."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

log = logging.getLogger("singularity.server")


def newest(found: Sequence[Json]) -> list[Json]:
    """One session for each kernel id. There are two where a kernel was restarted and the one that
    was given up could not be ended; that is said."""
    kept: dict[str, Json] = {}
    for item in sorted(found, key=lambda item: str(item["session"]["created_at"])):
        if before := kept.get(item["kernel_id"]):
            log.warning(
                "Singularity: session %s was given up for session %s and still runs; 'jupyter "
                "singularity end %s' ends it",
                before["session"]["id"],
                item["session"]["id"],
                before["session"]["id"],
            )
        kept[item["kernel_id"]] = item
    return list(kept.values())
