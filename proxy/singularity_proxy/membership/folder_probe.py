"""Whether two machines share a folder: each writes a file there that the other one has to find.

The service begins (`begin`), the node finds its file and answers (`answer`), the service looks for
the answer (`require_answer`) and removes both (`end`). Every name is new, so no cache of a network
file system knows of it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from typing import Any

from singularity_proxy.errors import BadRequest, Conflict, Unavailable

PREFIX = ".singularity-probe-"


@dataclass(frozen=True)
class Probe:
    """One folder that is tried. `word` stands in the service's file; the answer is another one,
    which only who has read the file can make."""

    what: str
    """For people: "the checkpoint store"."""
    folder: str
    name: str
    word: str

    @property
    def question(self) -> str:
        return os.path.join(self.folder, self.name)

    @property
    def reply(self) -> str:
        return f"{self.question}.answer"

    def to_json(self) -> dict[str, str]:
        """What the node is told: not the word, which it has to read."""
        return {"what": self.what, "folder": self.folder, "name": self.name}

    @classmethod
    def from_json(cls, body: Any) -> Probe:
        """Read what the service says; raises `BadRequest`."""
        said = [body.get(key) for key in ("what", "folder", "name")] if body else []
        if len(said) != 3 or not all(isinstance(one, str) for one in said):
            raise BadRequest("the service's word about shared folders cannot be read")
        what, folder, name = map(str, said)
        if not os.path.isabs(folder) or os.path.basename(name) != name or PREFIX not in name:
            raise BadRequest("the service's word about shared folders cannot be read")
        return cls(what, folder, name, "")


def begin(what: str, folder: str) -> Probe:
    """Write the service's file; raises `Unavailable` when it cannot write there."""
    probe = Probe(what, folder, f"{PREFIX}{secrets.token_hex(8)}", secrets.token_hex(16))
    try:
        _write(probe.question, probe.word)
    except OSError as error:
        raise Unavailable(
            f"the service cannot write to {what} {folder} ({error.strerror}), so no node joined: "
            "put that right where the service runs",
            folder=folder,
        ) from None
    return probe


def answer(probe: Probe) -> None:
    """Find the service's file here and answer it. Raises `Conflict` when it is not here, and
    `Unavailable` when nothing can be written here."""
    try:
        with open(probe.question, encoding="ascii") as file:
            word = file.read(64)
    except OSError as error:
        raise Conflict(
            f"{probe.what} of the service is not shared with this machine: what it wrote to "
            f"{probe.folder} is not here ({error.strerror}), so nothing was joined: mount the same "
            "folder at the same path",
            folder=probe.folder,
        ) from None
    try:
        _write(probe.reply, word[::-1])
    except OSError as error:
        raise Unavailable(
            f"this machine cannot write to {probe.what} {probe.folder} ({error.strerror}), so "
            "nothing was joined: mount it so that this user can write",
            folder=probe.folder,
        ) from None


def require_answer(probe: Probe) -> None:
    """Raise `Conflict` unless the node's answer is where the service can read it."""
    try:
        with open(probe.reply, encoding="ascii") as file:
            found = file.read(64)
    except OSError:
        found = ""
    if found != probe.word[::-1]:
        raise Conflict(
            f"what the node wrote to {probe.what} {probe.folder} does not arrive at the service, "
            "so it did not join: mount the same folder at the same path on both machines",
            folder=probe.folder,
        )


def end(probe: Probe) -> None:
    """Remove both files."""
    for path in (probe.question, probe.reply):
        with contextlib.suppress(OSError):
            os.unlink(path)


def _write(path: str, text: str) -> None:
    with open(path, "x", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
