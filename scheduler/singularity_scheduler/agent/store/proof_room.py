"""Whether a node can spare what the proof of a checkpoint takes for a moment: the memory of its
processes a second time, and room on disk for its image and files."""

from __future__ import annotations

import os

from singularity_proxy.checkpoint.device.driver import host_free_bytes
from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.errors import NoSpace, Unavailable

from singularity_scheduler.client.words import size

MEMORY_SHARE = 0.25
"""At most so much of the memory that is free is taken for a proof."""

DISK_FREE_PERCENT = 5.0
"""So much of the disk stays free."""

ON_DISK = ("image", "scratch", "ring")
"""The kinds of parts that are put there: as fetched, and where the processes find them."""


def refuse_room(summary: Summary, folder: str) -> None:
    """Raise `Unavailable` or `NoSpace` when the machine cannot spare what a proof of the checkpoint
    takes, in memory or in `folder`."""
    image, free = int(summary.parts.get("image", {}).get("bytes", 0)), host_free_bytes()
    if image > free * MEMORY_SHARE:
        raise Unavailable(
            f"the checkpoint was not proved because its processes take {size(image)} of memory, "
            f"more than a quarter of the {size(free)} that are free; it is kept as it was, try "
            "again later"
        )
    need = 2 * sum(int(summary.parts.get(kind, {}).get("bytes", 0)) for kind in ON_DISK)
    info = os.statvfs(folder)
    if info.f_bavail - need / info.f_frsize < info.f_blocks * DISK_FREE_PERCENT / 100:
        raise NoSpace(
            f"the checkpoint was not proved because that takes {size(need)} in {folder}, which is "
            "nearly full; it is kept as it was",
            path=folder,
        )
