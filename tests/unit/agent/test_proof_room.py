"""What a node must have left over for a proof."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.errors import NoSpace, Unavailable
from singularity_scheduler.agent.store import proof_room

GB = 1 << 30
Machine = Callable[[int, int], None]


def stored(image: int) -> Summary:
    parts = {"image": {"files": 9, "bytes": image}, "device": {"files": 1, "bytes": 99 * GB}}
    sizes = {"bytes": 1, "stored_bytes": 1, "sent_bytes": 1}
    at = "2026-05-01T12:00:00+00:00"
    return Summary("k", "", "s", "ada", at, "process", 1, 1, **sizes, parts=parts)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Sets how many GB are free of the memory, and of a disk of 100 GB."""

    def have(memory: int, disk: int) -> None:
        info = SimpleNamespace(f_bavail=disk, f_frsize=GB, f_blocks=100)
        monkeypatch.setattr(proof_room, "host_free_bytes", lambda: memory * GB)
        monkeypatch.setattr(os, "statvfs", lambda folder: info)

    return have


def test_no_more_than_a_quarter_of_the_free_memory_is_taken(machine: Machine) -> None:
    machine(4, 100)
    proof_room.refuse_room(stored(1 * GB), "/images")
    with pytest.raises(Unavailable, match="take 2 GiB of memory, more than a quarter of the 4 GiB"):
        proof_room.refuse_room(stored(2 * GB), "/images")


def test_a_disk_is_not_filled(machine: Machine) -> None:
    machine(16, 8)
    proof_room.refuse_room(stored(1 * GB), "/images")
    with pytest.raises(NoSpace, match="that takes 4 GiB in /images, which is nearly full"):
        proof_room.refuse_room(stored(2 * GB), "/images")
