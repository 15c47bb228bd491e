"""The format of CRIU's image files: a magic number of 8 bytes and messages of protobuf, each after
its length. What knows single fields is in `connections` and `image_files`."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from singularity_proxy.errors import ImageFailed

MAGIC_BYTES = 8
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def change_image(folder: str, name: str, what: str, change: Callable[[bytes], bytes]) -> None:
    """Replace the image file `name` of a dump in `folder` by what `change` makes of it. Raises
    `ImageFailed` when it is not what is expected; `what`: what is in it, for people."""
    path = os.path.join(folder, name)
    try:
        with open(path, "rb") as file:
            data = file.read()
        changed = change(data)
    except (OSError, IndexError, KeyError, struct.error, ValueError) as error:
        raise ImageFailed(
            f"the process image could not be taken: its {what} are not where they are expected in "
            f"it ({error}); the session goes on as it was, and its older checkpoints are kept",
            step="dump",
            log=[],
            intact=True,
        ) from None
    if changed != data:
        with open(path, "wb") as file:
            file.write(changed)


def change_messages(data: bytes, change: Callable[[bytes], bytes | None]) -> bytes:
    """Return the image file `data` with each message replaced by what `change` makes of it; None
    leaves it out. Raises `ValueError`, `IndexError` or `struct.error` for what is no image."""
    out = [data[:MAGIC_BYTES]]
    for message in messages(data):
        body = change(message)
        if body is not None:
            out += [struct.pack("<I", len(body)), body]
    return b"".join(out)


def messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of the image file `data`. Raises as `change_messages`."""
    at = MAGIC_BYTES
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        message = data[at + 4 : at + 4 + length]
        if len(message) != length:
            raise ValueError("a message is cut off")
        at += 4 + length
        yield message


@dataclass(frozen=True)
class Field:
    """One field of a message."""

    number: int
    kind: int
    number_value: int
    """Of a varint, else 0."""
    value: bytes
    """Of bytes and messages, else empty."""
    raw: bytes


def fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message. Raises `ValueError` or `IndexError` for what is none."""
    at = 0
    while at < len(data):
        begin = at
        key, at = _varint(data, at)
        kind, number, value = key & 7, 0, b""
        if kind == VARINT:
            number, at = _varint(data, at)
        elif kind == BYTES:
            length, at = _varint(data, at)
            value = data[at : at + length]
            at += length
        elif kind in (FIXED32, FIXED64):
            at += 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"a field of kind {kind}")
        if at > len(data):
            raise ValueError("a field is cut off")
        yield Field(key >> 3, kind, number, value, data[begin:at])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(the number at `at`, where it ends)."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _to_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_number(number: int, value: int) -> bytes:
    """Encode a field that holds a number."""
    return _to_varint(number << 3 | VARINT) + _to_varint(value)


def encode_message(number: int, value: bytes) -> bytes:
    """Encode a field that holds bytes or a message."""
    return _to_varint(number << 3 | BYTES) + _to_varint(len(value)) + value
