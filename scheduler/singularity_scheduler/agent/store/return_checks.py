"""Whether a session could come back from an older checkpoint of its own, asked while it still runs:
what a restore needs is looked at before anything of the running session is touched.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from singularity_proxy.capsule.files import reconcile
from singularity_proxy.capsule.files import record as open_files
from singularity_proxy.capsule.files.rules import Way
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.capsule.sockets import socket_inodes
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.errors import NoSpace, SingularityError

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.client.words import size

from .resumes import Resumer, ResumeRequest

_IN_FOLDER, _IN_MEMORY = ("image", "scratch", "record"), ("device", "ring")
"""The kinds of parts, by where a resume puts them."""


async def check_return(
    node: Node, live: LiveSession, checkpoint: str, *, discards: bool = False
) -> None:
    """Raise `SingularityError` when `checkpoint` of the session cannot come back on this node: its
    chunks, machine, torch, libraries, files, ports or room. Nothing is changed. `discards`: what
    the session is now is given up for it, so all of it is read, and not only looked for."""
    record = live.record
    request = ResumeRequest(
        session=record.session,
        source=record.session,
        user=record.user,
        kind=record.kind,
        tier=record.tier,
        name=record.name,
        virtual_devices=record.virtual_devices,
        epoch=record.epoch,
        checkpoint=checkpoint,
        incarnation=record.incarnation + 1,
        undo=True,
        reason="",
        connection=None,
    )
    try:
        summary, told = await Resumer(node).look(request)
        await asyncio.to_thread(_check_room, node, live, summary)
        await asyncio.to_thread(_check_opened, node, live, told)

        def check(box: Checkpoints) -> None:
            if discards:
                box.verify(record.session, summary.id)
            else:
                box.check_chunks(record.session, summary.id)

        await node.stores.call(record.user, check)
    except SingularityError as error:
        error.message += "; the session was not touched"
        raise


def _check_room(node: Node, live: LiveSession, summary: Summary) -> None:
    settings = node.settings
    own = _bytes_below(settings.session_shm(live.record.session))  # free once it has left
    for kinds, folder, freed in (
        (_IN_FOLDER, settings.images_dir, 0),
        (_IN_MEMORY, settings.shm_dir, own),
    ):
        need = sum(int(summary.parts.get(kind, {}).get("bytes", 0)) for kind in kinds)
        info = os.statvfs(folder)
        free = info.f_bavail * info.f_frsize + freed
        if need > free:
            raise NoSpace(
                f"checkpoint {summary.name or summary.id} needs {size(need)} in {folder} and "
                f"{size(free)} are free",
                path=folder,
            )


def _bytes_below(folder: str) -> int:
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(at, name)).st_blocks * 512
            except OSError:
                continue
    return total


def _check_opened(node: Node, live: LiveSession, told: dict[str, Any]) -> None:
    record, capsule = live.record, live.capsule
    running: frozenset[int] = frozenset()
    if isinstance(capsule, NamespaceCapsule):
        running = frozenset(socket_inodes(m.identity.pid for m in capsule.members()))
    reconcile.check(
        open_files.Record.from_json(told["opened"]),
        way=Way.ROLLBACK,
        own=(told["places"]["folder"], node.settings.session_dir(record.session)),
        other_node=told["node"] != node.settings.node,
        running=running,
        uid=record.uid,
        gid=record.gid,
    )
