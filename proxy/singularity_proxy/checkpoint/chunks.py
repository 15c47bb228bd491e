"""Hashing, compression and encryption of chunks.

A chunk's id is the BLAKE3 hash of what is in it, keyed per user when checkpoints are encrypted, so
that an id does not tell whether somebody has a known file. Stored, a chunk is a header of 8 bytes
(`SC`, version, flags, u32 size), then its contents: as they are, compressed by zstd, and either of
these encrypted by AES-256-GCM with a random nonce and the id as associated data.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from singularity_proxy.errors import KeyUnavailable

from .keys import MasterKey, missing_library
from .stores.base import Data

ID_BYTES = 32
PAGE = 4096
PAGE_ID_BYTES = 16

_HEADER = struct.Struct("<2sBBI")
_MAGIC, _VERSION = b"SC", 1
_ZSTD, _ENCRYPTED = 1, 2
_NONCE = 12
_LEVEL = -1  # a third less work than 1, for a tenth more bytes
_SAMPLES, _SAMPLE = 4, 8 << 10
_WORTH = 0.9  # saving less is not worth the time
_IDLE = 4


class Damaged(Exception):
    """The stored bytes are not this chunk; the text says in what way."""


class _Contexts:
    """Zstandard's compressors or decompressors, each of which serves one thread at a time. One
    holds up to 1.4 MB, so none is kept for each thread or for each user: whoever needs one takes
    one that is idle, or makes one, and at most `_IDLE` wait for the next."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle: deque[Any] = deque(maxlen=_IDLE)

    @contextmanager
    def borrow(self) -> Iterator[Any]:
        """One for a thread, until the end of the block."""
        try:
            context = self._idle.pop()
        except IndexError:
            context = self._make()
        yield context
        self._idle.append(context)  # not after an error, which may have left it in any state

    def drop(self) -> None:
        """Free those that are idle."""
        self._idle.clear()


def _make_compressor() -> Any:
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL)


def _make_decompressor() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor()


_COMPRESSORS = _Contexts(_make_compressor)
_DECOMPRESSORS = _Contexts(_make_decompressor)


def drop_idle_contexts() -> None:
    """Free the memory that compressors and decompressors keep for the next chunk."""
    _COMPRESSORS.drop()
    _DECOMPRESSORS.drop()


class Codec:
    """Turns the chunks of one user into stored bytes and back. May be used by many threads."""

    def __init__(self, user: str, key: MasterKey | None) -> None:
        try:
            import zstandard
            from blake3 import blake3
        except ImportError as error:
            raise missing_library(error.name or "blake3") from None
        self.key_id = key.id if key else None
        self._blake3, self._zstandard = blake3, zstandard
        self._options: dict[str, Any] = {}
        self._cipher: Any = None
        if key is not None:
            try:
                from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            except ImportError:
                raise missing_library("cryptography") from None
            self._options = {"key": key.derive(user, "names")}
            self._cipher = AESGCM(key.derive(user, "contents"))
        self.zero_page = self.pages(bytes(PAGE))

    def id(self, data: Data) -> str:
        """The name of a chunk with these contents."""
        name: str = self._blake3(data, **self._options).hexdigest()
        return name

    def plain_hash(self, data: Data) -> str:
        """BLAKE3 of stored bytes, without a key."""
        name: str = self._blake3(data).hexdigest()
        return name

    def pages(self, data: Data) -> bytes:
        """16 bytes for each page of `data`, whose size is a multiple of a page."""
        blake3, options, view = self._blake3, self._options, memoryview(data)
        return b"".join(
            blake3(view[at : at + PAGE], **options).digest(PAGE_ID_BYTES)
            for at in range(0, len(view), PAGE)
        )

    def encode(self, id: str, data: Data) -> list[Data]:
        """What is stored for a chunk, in pieces."""
        body, flags = data, 0
        if self._compressible(data):
            with _COMPRESSORS.borrow() as compressor:
                packed: bytes = compressor.compress(data)
            if len(packed) < len(data):
                body, flags = packed, _ZSTD
        if self._cipher is None:
            return [_HEADER.pack(_MAGIC, _VERSION, flags, len(data)), body]
        header = _HEADER.pack(_MAGIC, _VERSION, flags | _ENCRYPTED, len(data))
        nonce = os.urandom(_NONCE)
        return [header, nonce, self._cipher.encrypt(nonce, body, header + id.encode())]

    def decode(self, id: str, stored: bytes, *, check: bool = True) -> Data:
        """The contents of a stored chunk. Raises Damaged, KeyUnavailable. With `check` its hash
        must be its id; manifests, whose id is not their hash, are checked by their reader."""
        if len(stored) < _HEADER.size:
            raise Damaged("it is cut short")
        magic, version, flags, size = _HEADER.unpack_from(stored)
        if magic != _MAGIC or version != _VERSION or flags & ~(_ZSTD | _ENCRYPTED):
            raise Damaged("its header is damaged")
        rest = memoryview(stored)[_HEADER.size :]
        body: Data = rest
        if flags & _ENCRYPTED:
            if self._cipher is None:
                raise KeyUnavailable("it is encrypted and no key is configured")
            body = self._decrypt(rest, stored[: _HEADER.size] + id.encode())
        elif self._cipher is not None:
            raise Damaged("it is not encrypted")
        if flags & _ZSTD:
            body = self._decompress(body, size)
        if len(body) != size:
            raise Damaged("its size is wrong")
        if check and self.id(body) != id:
            raise Damaged("its hash is wrong")
        return body

    # ---- inside ----------------------------------------------------------------------------------

    def _decrypt(self, body: Data, associated: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            plain: bytes = self._cipher.decrypt(body[:_NONCE], body[_NONCE:], associated)
            return plain
        except (InvalidTag, ValueError):
            raise Damaged("it cannot be decrypted") from None

    def _decompress(self, body: Data, size: int) -> bytes:
        try:
            if self._zstandard.frame_content_size(body) != size:  # before any memory is taken
                raise Damaged("its size is wrong")
            with _DECOMPRESSORS.borrow() as decompressor:
                plain: bytes = decompressor.decompress(body)
            return plain
        except self._zstandard.ZstdError:
            raise Damaged("it cannot be decompressed") from None

    def _compressible(self, data: Data) -> bool:
        size = len(data)
        if size < 64:
            return False
        if size <= 2 * _SAMPLES * _SAMPLE:
            return True
        view, step = memoryview(data), (size - _SAMPLE) // (_SAMPLES - 1)
        sample = b"".join(view[i * step : i * step + _SAMPLE] for i in range(_SAMPLES))
        with _COMPRESSORS.borrow() as compressor:
            return len(compressor.compress(sample)) < len(sample) * _WORTH


_ZEROS = bytes(4 << 20)


def is_zero(data: bytes) -> bool:
    """Whether there is nothing but zero bytes in `data`."""
    if data[:32].strip(b"\0") or data[-32:].strip(b"\0"):
        return False
    return data == (_ZEROS if len(data) == len(_ZEROS) else bytes(len(data)))
