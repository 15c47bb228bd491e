"""Puts the contents of an older snapshot of a ring back into a newer one: `put_back`.

Both are `.snap` files (`state`). What the worker and its device proxy have agreed on since
(which storages there are, operators, events, the position in the ring) stays that of the newer one;
only the bytes of storages that both have, and the states of their generators, are the older ones.
A ring never uses the number of a storage twice, so equal numbers of one history are one storage.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from singularity_proxy.errors import Conflict

from .state import DamagedState, Snapshot, write_generators

_PIECE = 8 << 20


@dataclass(frozen=True)
class PutBack:
    """What became of the storages and generators of one ring, or of several."""

    storages: int = 0
    """Whose contents are the older ones again."""
    bytes: int = 0
    missing: int = 0
    """Storages of the older snapshot that are gone, or have another size."""
    newer: int = 0
    """Storages that came since; they are as they were."""
    generators: int = 0

    def __add__(self, other: PutBack) -> PutBack:
        return PutBack(
            self.storages + other.storages,
            self.bytes + other.bytes,
            self.missing + other.missing,
            self.newer + other.newer,
            self.generators + other.generators,
        )


def missing_from(stored: str | os.PathLike[str]) -> PutBack:
    """The outcome for a ring that has ended. Raises `DamagedState`."""
    with Snapshot(stored) as old:
        return PutBack(missing=len(old.storage_bytes))


def put_back(stored: str | os.PathLike[str], current: str | os.PathLike[str]) -> PutBack:
    """Change the file `current`, which nobody else may use meanwhile. After an error it is of no
    use any more: work on a copy. Raises `DamagedState`, `Conflict` (the states are of different
    kinds of devices) and OSError."""
    with Snapshot(stored) as old, Snapshot(current) as now:
        if old.device_type != now.device_type:
            raise Conflict(
                f"the checkpoint is of a {old.device_type} device and the session now has a "
                f"{now.device_type} device; nothing was changed"
            )
        then, here = old.storage_bytes, now.storage_bytes
        same = [number for number, size in then.items() if here.get(number) == size]
        fd = os.open(current, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            written: set[int] = set()
            for number in same:
                if then[number] == 0:  # it lies where the next one begins
                    continue
                at = now.place(number)
                if at in written:  # two numbers of one storage
                    continue
                written.add(at)
                _copy(old, number, then[number], fd, at)
            states = {
                number: state
                for number, state in old.generators.items()
                if len(now.generators.get(number, b"")) == len(state)
            }
            write_generators(fd, now, states)
        finally:
            os.close(fd)
        return PutBack(
            storages=len(same),
            bytes=sum(then[number] for number in same),
            missing=len(then) - len(same),
            newer=len(here) - len(same),
            generators=len(states),
        )


def _copy(old: Snapshot, number: int, size: int, fd: int, at: int) -> None:
    done = 0
    while done < size:
        piece = old.storage(number, done, min(_PIECE, size - done))
        if not piece:
            raise DamagedState(f"{old.path} ends in the middle of storage {number}", path=old.path)
        done += os.pwrite(fd, piece, at + done)
