"""What a checkpoint consists of (`Manifest`) and what a session's checkpoints are (`Head`).

A session has one head. It is small, is moved by compare-and-swap only, and is the whole truth: a
checkpoint is listed when it stands under `complete`, and a writer may publish only while it stands
under `writing`. The manifest of a checkpoint is an object of its own, named in the head with its
hash, so that listing checkpoints reads no list of chunks.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

FORMAT = 1
LEVELS = {
    "device": "device state and rings",
    "process": "device state, image of the processes, files",
    "files": "files alone",
}
ZERO = -1
"""Chunk number of an extent that is nothing but zero bytes."""

_CHECKPOINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def is_checkpoint_id(text: object) -> bool:
    return isinstance(text, str) and _CHECKPOINT.fullmatch(text) is not None


class Unreadable(Exception):
    """A head or manifest that is none, or of a version that is not known here."""


@dataclass(frozen=True)
class Summary:
    """One checkpoint as lists show it. Sizes in bytes."""

    id: str
    name: str
    session: str
    user: str
    at: str
    """When it was begun, ISO 8601 with an offset."""
    level: str
    epoch: int
    incarnation: int
    bytes: int
    """Of all files of it."""
    stored_bytes: int
    """Of all objects that it needs, compressed; chunks may be shared with other checkpoints."""
    sent_bytes: int
    """Of the objects that were new."""
    parts: dict[str, dict[str, int]]
    """Kind -> {files, bytes}."""
    reason: str = ""
    """Why it is not of a higher level."""
    key: str | None = None
    """Id of the master key; None when it is not encrypted."""
    manifest: str = ""
    """BLAKE3 hash of the manifest as stored."""

    @property
    def time(self) -> float:
        """`at` in seconds since 1970."""
        return datetime.fromisoformat(self.at).timestamp()


@dataclass(frozen=True)
class Intent:
    """A checkpoint that is being written."""

    id: str
    epoch: int
    at: str


@dataclass(frozen=True)
class Head:
    """The state of a session in the store; `complete` in the order in which they were made."""

    epoch: int = 0
    checkpoint: str | None = None
    complete: tuple[Summary, ...] = ()
    writing: tuple[Intent, ...] = ()

    def find(self, checkpoint: str) -> Summary | None:
        return next((c for c in self.complete if c.id == checkpoint), None)

    def intent(self, checkpoint: str) -> Intent | None:
        return next((w for w in self.writing if w.id == checkpoint), None)

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Head:
        """Raises Unreadable."""
        try:
            found = json.loads(data)
            if found["format"] != FORMAT:
                raise Unreadable(f"format {found['format']}")
            return cls(
                int(found["epoch"]),
                found["checkpoint"],
                tuple(Summary(**each) for each in found["complete"]),
                tuple(Intent(**each) for each in found["writing"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Unreadable(str(error)) from None


@dataclass(slots=True)
class Chunk:
    """One object that the checkpoint needs."""

    id: str
    size: int
    stored: int


@dataclass(slots=True)
class Extent:
    """`size` bytes of a file: bytes `at` and following of chunk number `chunk`."""

    chunk: int
    at: int
    size: int


@dataclass
class StoredPart:
    """One file of a checkpoint."""

    name: str
    kind: str
    type: str
    size: int
    mode: int
    mtime_ns: int
    target: str = ""
    """Of a link."""
    extents: list[Extent] = field(default_factory=list)


@dataclass
class PageIndex:
    """Chunk `chunk` holds the hashes of the pages of these: (chunk number, or -1 when this
    checkpoint does not need it, and number of pages), one after the other."""

    chunk: int
    of: list[tuple[int, int]]


@dataclass
class Manifest:
    """Everything that is needed to restore one checkpoint."""

    id: str
    user: str
    session: str
    chunks: list[Chunk] = field(default_factory=list)
    parts: list[StoredPart] = field(default_factory=list)
    indexes: list[PageIndex] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    """What the caller of `save` wants back with the checkpoint."""

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "id": self.id,
                "user": self.user,
                "session": self.session,
                "chunks": [[c.id, c.size, c.stored] for c in self.chunks],
                "parts": [
                    {
                        **{k: v for k, v in vars(p).items() if k != "extents"},
                        "extents": [[e.chunk, e.at, e.size] for e in p.extents],
                    }
                    for p in self.parts
                ],
                "indexes": [[i.chunk, i.of] for i in self.indexes],
                "record": self.record,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Raises Unreadable, also when something in it does not fit the rest."""
        try:
            found = json.loads(data)
            if found["format"] != FORMAT:
                raise Unreadable(f"format {found['format']}")
            manifest = cls(
                found["id"],
                found["user"],
                found["session"],
                [Chunk(*each) for each in found["chunks"]],
                [
                    StoredPart(**{**each, "extents": [Extent(*e) for e in each["extents"]]})
                    for each in found["parts"]
                ],
                [PageIndex(chunk, [(c, n) for c, n in of]) for chunk, of in found["indexes"]],
                found["record"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Unreadable(str(error)) from None
        manifest._check()
        return manifest

    def _check(self) -> None:
        for part in self.parts:
            at = 0
            for extent in part.extents:
                at += extent.size
                inside = extent.chunk == ZERO or (
                    0 <= extent.chunk < len(self.chunks)
                    and extent.at >= 0
                    and extent.at + extent.size <= self.chunks[extent.chunk].size
                )
                if extent.size <= 0 or not inside:
                    raise Unreadable(f"an extent of {part.name} is outside of its chunk")
            if at != (part.size if part.type == "file" else 0):
                raise Unreadable(f"the extents of {part.name} are not its size")
