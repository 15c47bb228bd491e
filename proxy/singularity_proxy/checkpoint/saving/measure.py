"""Which part of some bytes a save would have to send, found out on a sample of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from singularity_proxy.checkpoint.chunks import PAGE, PAGE_ID_BYTES, Codec, Damaged, is_zero
from singularity_proxy.checkpoint.layout import UserKeys
from singularity_proxy.checkpoint.loading import read_chunk
from singularity_proxy.checkpoint.manifest import Manifest
from singularity_proxy.checkpoint.stores.base import ObjectStore

from .pages import PageTable


def share_of_pages(
    store: ObjectStore, keys: UserKeys, codec: Codec, base: Manifest | None, sample: bytes
) -> float:
    """Of pages of a process image, what is stored for them by the bytes that they have: 0 for those
    that are zero or in the checkpoint `base`. 1 where there is no sample."""
    if not sample:
        return 1.0
    hashes = codec.pages(sample)
    names = [hashes[at : at + PAGE_ID_BYTES] for at in range(0, len(hashes), PAGE_ID_BYTES)]
    table = PageTable(lambda number: number)
    if base is not None:
        chunks = base.chunks

        def read(number: int) -> bytes:
            chunk = chunks[number]
            return bytes(read_chunk(store, keys, codec, chunk.id, chunk.size))

        with contextlib.suppress(Damaged):
            table.load(base, read, set(names))
    new = [
        sample[number * PAGE : (number + 1) * PAGE]
        for number, name in enumerate(names)
        if name != codec.zero_page and table.find(name) is None
    ]
    return _stored(codec, b"".join(new)) / len(sample)


def share_of_pieces(
    store: ObjectStore, keys: UserKeys, codec: Codec, pieces: Sequence[bytes]
) -> float:
    """The same of pieces of a file that are chunks, whichever checkpoint has them."""
    size = sum(map(len, pieces))
    new = 0
    for piece in pieces:
        if piece and not is_zero(piece) and store.stat(keys.chunk(codec.id(piece))) is None:
            new += _stored(codec, piece)
    return new / size if size else 1.0


def _stored(codec: Codec, data: bytes) -> int:
    return sum(map(len, codec.encode(codec.id(data), data))) if data else 0
