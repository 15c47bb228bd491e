"""The names of a user's objects in a store.

    USER/chunks/AB/ABCD...                  a chunk
    USER/sessions/SESSION/head              what the session's checkpoints are, and who writes one
    USER/sessions/SESSION/checkpoints/ID    a manifest
    USER/sessions/SESSION/pins/ID.N         chunks that a writer relies on
    USER/condemned/ID                       chunks that a collector is about to remove
    USER/clock                              empty; written to learn the store's time
    USER/damaged/CHUNK                      a chunk that was found damaged: to be sent again

Chunks are shared by the sessions of one user and never by two users.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

_LONGEST = 120


def component(name: str) -> str:
    """`name` (of a user, of a session) as one component of a key: distinct names stay distinct."""
    text = quote(name, safe="@")
    if text.startswith("."):
        text = "%2E" + text[1:]
    if len(text) > _LONGEST:  # longer ones are no file names
        text = text[:64].rstrip("%") + "=" + hashlib.sha256(name.encode()).hexdigest()[:40]
    return text or "%"


class UserKeys:
    """Keys of one user's objects."""

    def __init__(self, user: str) -> None:
        self.root = component(user)
        self.chunks = f"{self.root}/chunks/"
        self.sessions = f"{self.root}/sessions/"
        self.condemned = f"{self.root}/condemned/"
        self.clock = f"{self.root}/clock"
        self.damaged = f"{self.root}/damaged/"

    def chunk(self, id: str) -> str:
        return f"{self.chunks}{id[:2]}/{id}"

    def session(self, session: str) -> SessionKeys:
        return SessionKeys(self.sessions + component(session))


class SessionKeys:
    """Keys of one session's objects; `root` as in a listing."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.head = f"{root}/head"
        self.checkpoints = f"{root}/checkpoints/"
        self.pins = f"{root}/pins/"

    def manifest(self, checkpoint: str) -> str:
        return self.checkpoints + checkpoint

    def pin(self, checkpoint: str, number: int) -> str:
        return f"{self.pins}{checkpoint}.{number:06d}"
