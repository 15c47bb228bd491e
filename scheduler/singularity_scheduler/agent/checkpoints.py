"""Named checkpoints of device state, below `state_dir/checkpoints/<session>/<id>/`.

A proxy runs as the session's user, so it writes into that user's folder; the agent then copies the
files, hashing them on the way, into a folder of its own that no user can change. The manifest is
written last and the folder gets its name with it: a checkpoint exists or it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
from datetime import datetime, timezone
from typing import Any

from singularity_proxy.errors import Conflict, NoSpace, SingularityError

from .live import LiveSession
from .node import Node
from .sessions import Phase

_BLOCK = 4 << 20
_SUFFIXES = (".snap", ".journal")


async def take_checkpoint(node: Node, live: LiveSession, name: str) -> dict[str, Any]:
    """Save the device state of all rings at a record boundary; the session goes on. Returns
    {id, at, bytes, level}. Raises `Conflict` when nothing ran on a device yet, `NoSpace`."""
    record = live.record
    record.check_live()
    async with live.lock:
        record.check_live()
        if record.phase is Phase.NONE:
            raise Conflict(
                f"session {record.session} has not used a device yet, so there is no device state "
                "to save; nothing was changed",
                session=record.session,
            )
        now = datetime.now(timezone.utc)
        checkpoint = f"{now:%Y%m%dT%H%M%S}-{os.urandom(3).hex()}"
        folder = os.path.join(node.settings.checkpoint_dir(record.session), checkpoint)
        source = os.path.join(node.settings.session_dir(record.session), f"c-{checkpoint}")
        manifest: dict[str, Any] = {
            "id": checkpoint,
            "name": name,
            "session": record.session,
            "user": record.user,
            "at": now.isoformat(timespec="milliseconds"),
            "level": "device",
            "virtual_devices": record.virtual_devices,
            "epoch": record.epoch,
            "rings": [
                {
                    "ring_id": ring.ring_id,
                    "virtual_device": ring.record.virtual_device,
                    "done_seq": ring.file.read().done_seq,
                }
                for ring in live.rings.rings.values()
            ],
        }
        started = time.monotonic()
        wanted = {
            ring.ring_id + suffix for ring in live.rings.rings.values() for suffix in _SUFFIXES
        }
        try:
            if record.phase is Phase.HELD:
                os.mkdir(source, 0o700)
                if os.geteuid() == 0:
                    os.chown(source, record.uid, record.gid, follow_symlinks=False)
                for proxy in list(live.proxies.values()):
                    await proxy.call("checkpoint", timeout=None, directory=source)
            else:
                source = node.settings.session_shm(record.session)
            await asyncio.to_thread(_store, source, wanted, folder, manifest)
        except OSError as error:
            await asyncio.to_thread(shutil.rmtree, folder + ".partial", True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(
                    f"checkpoint '{name or checkpoint}' of session {record.session} was not made: "
                    "the disk is full; the session goes on and older checkpoints were kept"
                ) from None
            raise SingularityError(
                f"checkpoint '{name or checkpoint}' of session {record.session} was not made "
                f"({error.strerror}); the session goes on"
            ) from None
        finally:
            if record.phase is Phase.HELD:
                await asyncio.to_thread(shutil.rmtree, source, True)
        size = sum(int(f["bytes"]) for f in manifest["files"].values())
        record.last_checkpoint = {
            "id": checkpoint,
            "at": manifest["at"],
            "bytes": size,
            "level": "device",
            "name": name,
            "ms": round((time.monotonic() - started) * 1e3, 3),
        }
        node.save(live)
        return dict(record.last_checkpoint)


def remove_unfinished(node: Node, live: LiveSession) -> None:
    """Remove what an agent that was killed in the middle of a checkpoint left behind."""
    settings, session = node.settings, live.record.session
    for folder, pattern in (
        (settings.session_dir(session), re.compile(r"c-\d{8}T\d{6}-[0-9a-f]{6}")),
        (settings.checkpoint_dir(session), re.compile(r".*\.partial")),
    ):
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(folder):
                if pattern.fullmatch(name):
                    shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _store(source: str, wanted: set[str], folder: str, manifest: dict[str, Any]) -> None:
    partial = folder + ".partial"
    os.makedirs(partial, 0o700)
    source_fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        files: dict[str, Any] = {}
        for name in sorted(wanted.intersection(os.listdir(source_fd))):
            files[name] = _copy(source_fd, name, os.path.join(partial, name))
    finally:
        os.close(source_fd)
    manifest["files"] = files
    with open(os.path.join(partial, "manifest.json"), "x", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.rename(partial, folder)
    parent = os.open(os.path.dirname(folder), os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _copy(source_fd: int, name: str, target: str) -> dict[str, Any]:
    # The folder is its user's: only regular files of its own are read, never links.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=source_fd)
    digest, total = hashlib.sha256(), 0
    with open(fd, "rb") as reader:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
            raise OSError(errno.EINVAL, f"{name} is not a plain file")
        with open(target, "xb") as writer:
            while block := reader.read(_BLOCK):
                digest.update(block)
                writer.write(block)
                total += len(block)
            writer.flush()
            os.fsync(writer.fileno())
    return {"bytes": total, "sha256": digest.hexdigest()}
