"""What would become free in a store if checkpoints were deleted, for people who have to choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from singularity_proxy.checkpoint.chunks import Codec
from singularity_proxy.checkpoint.heads import Heads
from singularity_proxy.checkpoint.layout import UserKeys
from singularity_proxy.checkpoint.loading import MissingManifest, read_manifest
from singularity_proxy.checkpoint.stores.base import ObjectStore, decimal_size
from singularity_proxy.errors import SingularityError

NAMED = 2
"""So many sessions are named in a sentence, those first that would free most."""


@dataclass(frozen=True)
class Freeable:
    """Stored bytes that the checkpoints of one session need and nothing else does."""

    session: str
    older: int
    """Of all but the newest: those can be deleted while the session goes on or waits."""
    all: int


def freeable(
    store: ObjectStore, user: str, codec_of: Callable[[str | None], Codec]
) -> list[Freeable]:
    """What each session of `user` would free, those first that would free most. Checkpoints that
    cannot be read count nothing. Raises what the store raises."""
    keys = UserKeys(user)
    heads = Heads(store, keys)
    stored: dict[str, int] = {}
    newest: dict[str, set[str]] = {}
    older: dict[str, set[str]] = {}
    for session in heads.sessions():
        head = heads.read(session)
        for summary in head.complete:
            try:
                manifest = read_manifest(store, session, codec_of(summary.key), summary)
            except (MissingManifest, SingularityError):
                continue
            place = newest if summary.id == head.checkpoint else older
            place.setdefault(summary.session, set()).update(c.id for c in manifest.chunks)
            stored.update((c.id, c.stored) for c in manifest.chunks)
    users = Counter(
        id for name in {*newest, *older} for id in newest.get(name, set()) | older.get(name, set())
    )
    found = []
    for name in {*newest, *older}:
        needed = newest.get(name, set())
        beyond = older.get(name, set()) - needed
        found.append(
            Freeable(
                name,
                sum(stored[id] for id in beyond if users[id] == 1),
                sum(stored[id] for id in needed | beyond if users[id] == 1),
            )
        )
    return sorted(found, key=lambda one: (-max(one.older, one.all), one.session))


def said(found: Iterable[Freeable], but: str = "") -> str:
    """What would make room, as the end of a sentence; "": nothing of this user would. `but`: the
    session that needs the room, of which only older checkpoints are named."""
    words = []
    for one in found:
        if one.older >= max(1, one.all // 2) or one.session == but:
            if one.older:
                words.append(
                    f"deleting the older checkpoints of session {one.session} would free "
                    f"{decimal_size(one.older)}"
                )
        elif one.all:
            words.append(
                f"ending session {one.session}, or deleting its checkpoints if it has ended, "
                f"would free {decimal_size(one.all)}"
            )
    return " and ".join(words[:NAMED])
