"""What checkpoints cost: chunks per second, Azure Blob, S3, what a second one sends, sessions that
move."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from singularity_proxy.capsule.images import criu
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.saving.writer import Request
from singularity_proxy.checkpoint.stores.base import ObjectStore
from singularity_proxy.checkpoint.stores.urls import open_store

from . import connection, moves, sameness
from .cores import cores
from .figures import Figure
from .tools import see_support

DESCRIPTION = "checkpoints: chunks per second, Azure Blob, S3, the second one, sessions that move"
BOUNDS = {
    "second_checkpoint_sent_fraction": 0.03,
    "suspend_s": 4.0,
    "resume_s": 2.0,
    "migrate_s": 6.0,
    **connection.BOUNDS,
}
FLOORS = {"chunk_mb_s": 500.0, "azurite_ratio": 0.6, "s3_ratio": 0.6, **sameness.FLOORS}
MB = 1_000_000
STREAM_BLOB = 8 << 20
"""Bytes of one upload when the emulator's own speed is measured."""


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "state_mb": 512 if quick else 1000,
        "azurite_mb": 64 if quick else 256,
        "s3_mb": 64 if quick else 256,
        "changed_fraction": 0.01,
        "rounds": 2 if quick else 5,
        "cores": 2,
        **moves.sizes(quick),
        **connection.sizes(quick),
        **sameness.sizes(quick),
    }


class Bench:
    """Folders for the data (in memory, so that reading it costs what reading device state costs)
    and for the stores (on disk)."""

    def __init__(self, size: dict[str, Any]) -> None:
        self.size = size
        self.memory = Path(tempfile.mkdtemp(prefix="singularity-bench-", dir="/dev/shm"))
        self.disk = Path(tempfile.mkdtemp(prefix="singularity-bench-"))
        self._stores = 0

    def close(self) -> None:
        shutil.rmtree(self.memory, ignore_errors=True)
        shutil.rmtree(self.disk, ignore_errors=True)

    def state(self, megabytes: int) -> Path:
        """A device state that does not compress."""
        path = self.memory / f"state-{megabytes}.snap"
        if not path.exists():
            with path.open("wb") as file:
                for _ in range(megabytes):
                    file.write(os.urandom(MB))
        return path

    def folder(self) -> Checkpoints:
        """An empty store in a folder."""
        self._stores += 1
        return Checkpoints(open_store(str(self.disk / f"store-{self._stores}")), "bench")


def save(box: Checkpoints, path: Path) -> tuple[float, int]:
    """(seconds, bytes sent) of one checkpoint."""
    start = time.perf_counter()
    saved = box.save(Request("bench", 1, "device"), [Part("state.snap", "device", str(path))])
    return time.perf_counter() - start, saved.sent_bytes


def chunk_mb_s(bench: Bench) -> Figure:
    """Hash, try to compress, write and synchronize: a first checkpoint into a folder."""
    path, rates = bench.state(bench.size["state_mb"]), []
    for _ in range(bench.size["rounds"]):
        box = bench.folder()
        os.sync()  # what the round before left to be written
        seconds, _ = save(box, path)
        rates.append(path.stat().st_size / MB / seconds)
        shutil.rmtree(box.store.url)
    return Figure(rates)


def second_checkpoint_sent_fraction(bench: Bench) -> Figure:
    """One stretch of the state changes between two checkpoints."""
    path, box = bench.state(bench.size["state_mb"]), bench.folder()
    total = path.stat().st_size
    changed = int(total * bench.size["changed_fraction"])
    save(box, path)
    fractions = []
    for round_ in range(bench.size["rounds"]):
        with path.open("r+b") as file:
            file.seek((total - changed) * (2 * round_ + 1) // (2 * bench.size["rounds"]))
            file.write(os.urandom(changed))
        fractions.append(save(box, path)[1] / total)
    shutil.rmtree(box.store.url)
    return Figure(fractions)


def azurite_ratio(bench: Bench) -> Figure:
    """A checkpoint's bytes per second as a fraction of what one plain stream of uploads reaches,
    both into Microsoft's emulator, one right after the other."""
    see_support()
    from support.azurite import Azurite

    return ratio_to_stream(bench, "azurite_mb", Azurite, lambda server, to: f"{server.url}/{to}")


def s3_ratio(bench: Bench) -> Figure:
    """The same with S3, into moto as the tests run it."""
    see_support()
    from support.s3_emulator import S3Emulator

    return ratio_to_stream(bench, "s3_mb", S3Emulator, lambda server, to: str(server.url(to)))


def ratio_to_stream(
    bench: Bench, size: str, emulator: Callable[[], Any], address: Callable[[Any, str], str]
) -> Figure:
    """Measure a save of `size` (a key of the bench's sizes, in MB) into an emulator against a plain
    stream; `address`: the URL of a store in it, of the emulator and a name."""
    path = bench.state(bench.size[size])
    data = path.read_bytes()
    ratios = []
    for round_ in range(bench.size["rounds"]):
        with emulator() as server:  # a new one, because it keeps in memory what is deleted
            store = open_store(address(server, f"bench/{round_}"), **server.options)
            stream(store, "warm", data[: 4 * STREAM_BLOB])
            plain = stream(store, "plain", data)
            seconds, _ = save(Checkpoints(store, "bench"), path)
            ratios.append(plain / seconds)
            store.close()
    return Figure(ratios)


def stream(store: ObjectStore, name: str, data: bytes) -> float:
    """Seconds to upload `data` as blobs, one after the other."""
    start = time.perf_counter()
    for at in range(0, len(data), STREAM_BLOB):
        store.put(f"{name}/{at}", [data[at : at + STREAM_BLOB]])
    return time.perf_counter() - start


async def measure(quick: bool, say: Callable[[str], object]) -> dict[str, Figure]:
    """Called by the driver; `say` prints a line of progress."""
    size = sizes(quick)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores(size["cores"]))
    bench = Bench(size)
    figures: dict[str, Figure] = {}
    try:
        for part in (chunk_mb_s, second_checkpoint_sent_fraction, azurite_ratio, s3_ratio):
            say(f"measuring {part.__name__} ...")
            figures[part.__name__] = part(bench)
        say("measuring sessions that move ...")
        figures.update(await moves.measure_moves(size))
        if criu.probe().ok:
            for key in (sameness.second_image_shrink, sameness.migrations_bitwise_equal):
                say(f"measuring {key.__name__} ...")
                figures[key.__name__] = await key(size)
            say("measuring a kernel's messages across suspends ...")
            figures.update(await asyncio.to_thread(connection.measure_connection, size))
    finally:
        bench.close()
        os.sched_setaffinity(0, allowed)
    return figures
