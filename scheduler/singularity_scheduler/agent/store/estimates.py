"""How much a session will take in the store, found out while it runs: before anything of it is
stopped it is clear whether there is room.

Counted is what a save would send: the anonymous memory of its processes (which is what a process
image consists of), device state, rings and the session's own files. Of memory and parked state a
sample is looked at: zeros and what the newest checkpoint has already cost nothing, and the rest is
compressed as it would be. Device state that is on a device cannot be looked at and counts in full.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

from singularity_proxy.capsule.files import scratch
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.chunks import PAGE
from singularity_proxy.checkpoint.saving.cutting import cut

from singularity_scheduler.agent.node import Settings
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Phase

from . import parts as files

MARGIN, LEAST = 1.1, 4 << 20
"""What is estimated may be so much more, and this much besides: indexes, manifest, small files."""

PAGES, PROBES = 384, 8192
"""So many pages of memory are looked at, found by so many looks at addresses: most of what programs
have reserved is not in memory."""

PIECES = 12
"""Pieces of parked device state that are looked at."""

MOST_FILES = 200_000


def expected_bytes(live: LiveSession, settings: Settings, box: Checkpoints, level: str) -> int:
    """Bytes that a checkpoint of this level adds to the store. Blocks for some hundredths of a
    second, and seconds where device state is parked. Raises what the store raises."""
    session = live.record.session
    need = _device_bytes(live, settings, box)
    if level == "process" and isinstance(live.capsule, NamespaceCapsule):
        pids = [member.identity.pid for member in live.capsule.members()]
        memory = sum(_anonymous(pid) for pid in pids)
        need += round(memory * box.measure_pages(session, _sample(pids)))
        need += _scratch_bytes(live, settings)
        need += _allocated(settings.session_shm(session), ".ring")
    return round(need * MARGIN) + LEAST


def _device_bytes(live: LiveSession, settings: Settings, box: Checkpoints) -> int:
    if live.record.phase is not Phase.PARKED:
        return sum(ring.file.read().ring_memory_current for ring in live.rings.rings.values())
    folder = settings.session_shm(live.record.session)
    return sum(_state_bytes(path, box) for path in _ending(folder, ".snap"))


def _state_bytes(path: str, box: Checkpoints) -> int:
    """What a file of parked device state would add. It is the user's, and may be anything."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        size = os.fstat(fd).st_size
        pieces = [piece for piece in cut(fd, size, device=True) if not piece.hole]
        chosen = random.sample(pieces, min(PIECES, len(pieces)))
        data = [os.pread(fd, piece.size, piece.at) for piece in chosen]
        return round(sum(p.size for p in pieces) * box.measure_pieces(data))
    except OSError:
        return 0
    finally:
        os.close(fd)


def _anonymous(pid: int) -> int:
    """Bytes of a process that are in no file, each shared page counted once; 0: it has ended."""
    found = 0
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file,
    ):
        for line in file:
            name, _, value = line.partition(":")
            if name in ("Pss_Anon", "SwapPss"):
                found += int(value.split()[0]) * 1024
    return found


def _sample(pids: list[int]) -> bytes:
    """Some pages of anonymous memory, from anywhere in it; b"": they cannot be read."""
    places = [(pid, first, pages) for pid in pids for first, pages in _mappings(pid)]
    if not places:
        return b""
    chosen = random.choices(places, [pages for _, _, pages in places], k=PROBES)
    wanted: dict[int, list[int]] = {}
    for pid, first, pages in chosen:
        wanted.setdefault(pid, []).append(first + random.randrange(pages) * PAGE)
    present = [(pid, at) for pid, some in wanted.items() for at in _in_memory(pid, some)]
    read: dict[int, list[int]] = {}
    for pid, at in random.sample(present, min(PAGES, len(present))):
        read.setdefault(pid, []).append(at)
    return b"".join(page for pid, some in read.items() for page in _read_pages(pid, some))


def _mappings(pid: int) -> Iterator[tuple[int, int]]:
    """(address, pages) of the writable mappings of no file."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            place, rights, _, _, inode, *_ = line.split(maxsplit=5)
            if rights.startswith("rw") and rights[3] == "p" and inode == "0":
                first, end = (int(word, 16) for word in place.split("-"))
                yield first, (end - first) // PAGE


def _in_memory(pid: int, addresses: list[int]) -> Iterator[int]:
    """Those of these addresses whose pages are in memory; the others were never used."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for address in addresses:
            with contextlib.suppress(OSError):
                entry = os.pread(pagemap.fileno(), 8, address // PAGE * 8)
                if len(entry) == 8 and entry[7] & 0x80:  # bit 63: it is in memory
                    yield address


def _read_pages(pid: int, addresses: list[int]) -> Iterator[bytes]:
    """The pages at these addresses that are still there."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for address in addresses:
            with contextlib.suppress(OSError):
                page = os.pread(memory.fileno(), PAGE, address)
                if len(page) == PAGE:
                    yield page


def _scratch_bytes(live: LiveSession, settings: Settings) -> int:
    """Of the session's own files: its folder, /tmp and /dev/shm, as they are inside."""
    assert isinstance(live.capsule, NamespaceCapsule)
    record, inside = live.record, f"/proc/{live.capsule.init.pid}/root"
    folder = record.places.get("folder") or settings.session_dir(record.session)
    roots, skip = files.scratch_roots(record, folder)
    rings = record.places.get("shm") or settings.session_shm(record.session)
    # What is mounted there, such as an environment below /tmp, does not travel with the session.
    mounted = scratch.mount_points(live.capsule.init.pid) - set(roots)
    left_out = {inside + path for path in (*skip, rings, *mounted)}
    total = count = 0
    for root in roots:
        for at, folders, names in os.walk(inside + root):
            folders[:] = [name for name in folders if os.path.join(at, name) not in left_out]
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(at, name)).st_blocks * 512
            count += len(names)
            if count > MOST_FILES:
                return total
    return total


def _ending(folder: str, suffix: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [os.path.join(folder, n) for n in os.listdir(folder) if n.endswith(suffix)]
    return []


def _allocated(folder: str, suffix: str) -> int:
    total = 0
    for path in _ending(folder, suffix):
        with contextlib.suppress(OSError):
            total += os.lstat(path).st_blocks * 512
    return total
