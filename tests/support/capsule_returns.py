"""A capsule that is saved, ended and brought back, with its files outside put right; no agent."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from singularity_proxy.capsule.files import record as files
from singularity_proxy.capsule.files import scratch
from singularity_proxy.capsule.files.reconcile import Plan
from singularity_proxy.capsule.files.record import Record
from singularity_proxy.capsule.files.rules import Way
from singularity_proxy.capsule.images import image
from singularity_proxy.capsule.namespace import NamespaceCapsule
from support.capsules import Place


async def saved(place: Place, capsule: NamespaceCapsule, folder: Path) -> Record:
    """The whole checkpoint of a capsule, which stays frozen, in the new `folder`."""
    os.mkdir(folder)
    await asyncio.to_thread(capsule.freeze)
    record = await asyncio.to_thread(
        files.describe, capsule, session_folder=str(place.folder), ring_folder=str(place.shm)
    )
    archive = str(folder / "scratch")
    await asyncio.to_thread(scratch.pack, capsule, archive, [str(place.folder), "/dev/shm"])
    await asyncio.to_thread(image.dump, capsule, str(folder / "image"))
    return Record.from_json(json.loads(json.dumps(record.to_json())))


def back(place: Place, way: Way = Way.ROLLBACK) -> dict[str, Any]:
    """How a session comes back in the same place, with its user's rights."""
    own = (str(place.folder), str(place.folder))
    return {"way": way, "own": own, "uid": place.uid, "gid": place.uid}


async def bring_back(
    place: Place, folder: Path, plan: Plan, stopped: Sequence[int] = ()
) -> NamespaceCapsule:
    """The processes of the checkpoint in `folder`, going on but for those `stopped`."""
    capsule = await place.prepare()
    roots = [str(place.folder), "/dev/shm"]
    await asyncio.to_thread(scratch.unpack, capsule, str(folder / "scratch"), roots)
    await asyncio.to_thread(
        image.restore, capsule, str(folder / "image"), plan=plan, stopped=stopped
    )
    await asyncio.to_thread(capsule.thaw)
    return capsule
