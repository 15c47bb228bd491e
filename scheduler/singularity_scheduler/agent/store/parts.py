"""Which files are the checkpoint of a session, and what is written down beside them. No I/O but
reading the names in a folder.

In a checkpoint the files are called `image/...` (of the process tree), `shm/...` (rings and their
device state) and `scratch.tar` (the session's folder, /tmp and /dev/shm).
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from singularity_proxy.capsule.images.image import files_of
from singularity_proxy.capsule.images.machine import Machine
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.elastic.bridge.rendezvous import FILE as RENDEZVOUS

from singularity_scheduler.agent.node import Settings
from singularity_scheduler.agent.sessions.record import Phase, RingRecord, SessionRecord

FORMAT = 1

IMAGE, SHM, SCRATCH = "image", "shm", "scratch.tar"

COPY_PREFIX = "c-"
"""Of folders in a session's folder that device proxies write checkpoints to."""

STAGE = ".new"
"""Ends the name of a ring folder that is being downloaded."""

TUNNEL = "tunnel.json"
"""In a session's folder: where its relay is now."""


def copy_folder(settings: Settings, session: str, checkpoint: str) -> str:
    """Where the session's device proxies write their state for a checkpoint."""
    return os.path.join(settings.session_dir(session), COPY_PREFIX + checkpoint)


def copy_folders(settings: Settings, session: str) -> list[str]:
    """All such folders that are there."""
    folder = settings.session_dir(session)
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        names = [name for name in os.listdir(folder) if name.startswith(COPY_PREFIX)]
    return [os.path.join(folder, name) for name in names]


def image_parts(folder: str) -> list[Part]:
    """The files that CRIU wrote to `folder`."""
    return [
        Part(f"{IMAGE}/{name}", "image", os.path.join(folder, name)) for name in files_of(folder)
    ]


def scratch_parts(path: str) -> list[Part]:
    """The archive of the session's own files."""
    return [Part(SCRATCH, "scratch", path)]


def ring_parts(shm: str, rings: list[RingRecord]) -> list[Part]:
    """Ring files in `shm`, without their device state."""
    names = [f"{ring.ring_id}.ring" for ring in rings]
    return [Part(f"{SHM}/{name}", "ring", name, shm) for name in names]


def state_parts(folder: str, rings: list[RingRecord]) -> list[Part]:
    """The device state of `rings`. A snapshot and a journal are there or not, as the proxy left
    them."""
    names = {ring.ring_id + suffix for ring in rings for suffix in (".snap", ".journal")}
    found = sorted(names.intersection(os.listdir(folder)))
    return [Part(f"{SHM}/{name}", "device", name, folder) for name in found]


def scratch_roots(record: SessionRecord, folder: str) -> tuple[list[str], list[str]]:
    """(folders inside the capsule whose files travel with the session, paths in them that do not).
    `folder`: the session's own, as it is called inside."""
    return roots_of(record.kept, folder)


def roots_of(kept: list[str] | None, folder: str) -> tuple[list[str], list[str]]:
    """The same of a session that keeps these folders of /tmp at their place."""
    own_tmp = os.path.join(folder, "tmp")
    roots = [folder, "/dev/shm"]
    skip = [os.path.join(folder, name) for name in (TUNNEL, RENDEZVOUS)]
    if kept is not None:  # else /tmp is the machine's, and the folder for it unused
        roots.append("/tmp")
        skip.append(own_tmp)
    return roots, skip


def describe(
    record: SessionRecord,
    *,
    node: str,
    torch: str,
    workers: dict[str, int],
    places: dict[str, str],
    opened: dict[str, Any],
    processes: int,
    positions: dict[str, Any] | None,
    machine: Machine | None,
) -> dict[str, Any]:
    """What a node must know to bring the session back, as JSON. `workers`: ring -> the pid of its
    process inside the capsule; `opened`: `capsule.files.Record`;
    `positions`: of the kernel connection; `machine`: what the image depends on."""
    return {
        "format": FORMAT,
        "node": node,
        "torch": torch,
        "uid": record.uid,
        "gid": record.gid,
        "incarnation": record.incarnation,
        "virtual_devices": record.virtual_devices,
        "phase": (Phase.NONE if record.phase is Phase.NONE else Phase.PARKED).value,
        "rings": [
            {"ring_id": r.ring_id, "virtual_device": r.virtual_device, "worker": workers[r.ring_id]}
            for r in record.rings.values()
            if r.ring_id in workers
        ],
        "rings_made": record.rings_made,
        "busy": record.busy,
        "log_cut": record.log_cut,
        "cwd": record.cwd,
        "kept": record.kept,
        "places": places,
        "opened": opened,
        "processes": processes,
        "positions": positions,
        "connected": record.connected,
        "tunnel": record.tunnel,
        "part": record.part
        and {
            "number": record.part.number,
            "parts": record.part.parts,
            "master_port": record.part.master_port,
        },
        "machine": machine.to_json() if machine else None,
    }
