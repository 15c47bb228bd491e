"""Reads and moves the heads of a user's sessions. Every change of what is listed happens here."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from datetime import datetime, timezone

from singularity_proxy.errors import (
    Conflict,
    DamagedCheckpoint,
    NoSpace,
    NotFound,
    StaleEpoch,
    StoreUnavailable,
    Superseded,
)

from .layout import SessionKeys, UserKeys
from .manifest import Head, Intent, Summary, Unreadable
from .stores.base import Moved, ObjectMissing, ObjectStore

_TRIES = 40


class Heads:
    """The heads of the sessions of one user."""

    def __init__(self, store: ObjectStore, keys: UserKeys) -> None:
        self._store, self._keys = store, keys

    def sessions(self) -> list[SessionKeys]:
        """All sessions that ever had a checkpoint."""
        return [
            SessionKeys(self._keys.sessions + name)
            for name in self._store.names(self._keys.sessions)
        ]

    def read(self, session: SessionKeys) -> Head:
        """The head of a session; an empty one when it has none. Raises DamagedCheckpoint."""
        return self._read(session)[0]

    def register(self, session: SessionKeys, checkpoint: str, epoch: int) -> Head:
        """A writer begins. Writers of older epochs can never publish afterwards. Raises
        StaleEpoch."""
        intent = Intent(checkpoint, epoch, _now())

        def change(head: Head) -> Head:
            _check_epoch(head, epoch)
            if head.intent(checkpoint):
                return head  # an answer was lost on the way, and asked for again
            return dataclasses.replace(
                head,
                epoch=epoch,
                writing=(*(w for w in head.writing if w.epoch >= epoch), intent),
            )

        return self._change(session, change)

    def claim(self, session: SessionKeys, epoch: int) -> Head:
        """A new epoch begins without a checkpoint: older writers can never publish. Raises
        StaleEpoch."""

        def change(head: Head) -> Head:
            _check_epoch(head, epoch)
            writing = tuple(w for w in head.writing if w.epoch >= epoch)
            return dataclasses.replace(head, epoch=epoch, writing=writing)

        return self._change(session, change)

    def publish(self, session: SessionKeys, summary: Summary) -> Head:
        """The checkpoint is listed and becomes the head's. Raises StaleEpoch, Superseded."""

        def change(head: Head) -> Head:
            if head.find(summary.id):
                return head  # an answer was lost on the way, and asked for again
            _check_epoch(head, summary.epoch)
            if head.intent(summary.id) is None:
                raise Superseded(
                    f"checkpoint {summary.id} of session {summary.session} was taken for dead and "
                    "is not listed; older checkpoints were kept, take it again",
                    session=summary.session,
                    checkpoint=summary.id,
                )
            return dataclasses.replace(
                head,
                checkpoint=summary.id,
                complete=(*head.complete, summary),
                writing=tuple(w for w in head.writing if w.id != summary.id),
            )

        return self._change(session, change)

    def withdraw(self, session: SessionKeys, checkpoint: str) -> bool:
        """A writer gave up, or is taken for dead; whether it had not published before."""
        found = False

        def change(head: Head) -> Head:
            nonlocal found
            found = head.intent(checkpoint) is not None
            writing = tuple(w for w in head.writing if w.id != checkpoint)
            return dataclasses.replace(head, writing=writing)

        self._change(session, change, shrinks=True)
        return found

    def remove(
        self,
        session: SessionKeys,
        checkpoints: set[str],
        epoch: int | None = None,
        *,
        head_too: bool = False,
    ) -> list[str]:
        """Take checkpoints off the list; those that were on it. Raises Conflict for the head's own
        (with `head_too` the newest of the others becomes the head's), StaleEpoch."""
        found: list[str] = []

        def change(head: Head) -> Head:
            nonlocal found
            if epoch is not None:
                _check_epoch(head, epoch)
            if head.checkpoint in checkpoints and not head_too:
                raise Conflict(
                    f"checkpoint {head.checkpoint} is what its session would come back from and "
                    "was kept",
                    checkpoint=head.checkpoint,
                )
            found = [c.id for c in head.complete if c.id in checkpoints]
            return _without(head, found)

        self._change(session, change, shrinks=True)
        return found

    def forget(
        self, session: SessionKeys, epoch: int | None = None, *, keep_named: bool = False
    ) -> list[str]:
        """Take all checkpoints off the list (or those without a name), and writers; the epoch
        stays. Raises StaleEpoch."""
        found: list[str] = []

        def change(head: Head) -> Head:
            nonlocal found
            if epoch is not None:
                _check_epoch(head, epoch)
            found = [c.id for c in head.complete if not (keep_named and c.name)]
            left = _without(head, found)
            return dataclasses.replace(left, epoch=max(head.epoch, epoch or 0), writing=())

        self._change(session, change, shrinks=True)
        return found

    # ---- inside ----------------------------------------------------------------------------------

    def _read(self, session: SessionKeys) -> tuple[Head, str | None]:
        try:
            data, etag = self._store.read(session.head)
        except ObjectMissing:
            return Head(), None
        try:
            return Head.from_bytes(data), etag
        except Unreadable as error:
            raise DamagedCheckpoint(
                f"the head of a session in {self._store.url} is damaged ({error}); nothing was "
                "changed, put back a copy of it",
                object=session.head,
            ) from None

    def _change(
        self, session: SessionKeys, change: Callable[[Head], Head], *, shrinks: bool = False
    ) -> Head:
        """`shrinks`: something can be freed afterwards, so a full store lends room for it."""
        for attempt in range(_TRIES):
            head, etag = self._read(session)
            wanted = change(head)
            if wanted == head:
                return head
            try:
                self._store.swap(session.head, wanted.to_bytes(), etag)
                return wanted
            except NoSpace:
                if not shrinks or not self._store.lend_room():
                    raise
            except Moved:
                time.sleep(random.uniform(0, 0.002 * min(attempt + 1, 20)))
        raise StoreUnavailable(
            f"the head of a session in {self._store.url} is moved by others all the time; "
            "nothing was changed, try again"
        )


def checkpoint_of(head: Head, session: str, checkpoint: str | None) -> Summary:
    """The summary of one checkpoint, by id or by name (the newest of that name); None: the head's.
    Raises NotFound."""
    if checkpoint is None:
        checkpoint = head.checkpoint
    found = head.find(checkpoint) if checkpoint else None
    if found is None and checkpoint:
        found = next((c for c in reversed(head.complete) if c.name == checkpoint), None)
    if found is None:
        what = f"checkpoint '{checkpoint}'" if checkpoint else "checkpoint"
        raise NotFound(
            f"session {session} has no {what}; nothing was changed",
            session=session,
            checkpoint=checkpoint,
        )
    return found


def _without(head: Head, checkpoints: list[str]) -> Head:
    kept = tuple(c for c in head.complete if c.id not in checkpoints)
    newest = head.checkpoint
    if newest in checkpoints:
        newest = kept[-1].id if kept else None
    return dataclasses.replace(head, checkpoint=newest, complete=kept)


def _check_epoch(head: Head, epoch: int) -> None:
    if epoch < head.epoch:
        raise StaleEpoch(
            f"epoch {epoch} is over: the session belongs to another agent since epoch "
            f"{head.epoch}; nothing was published",
            epoch=epoch,
            newest=head.epoch,
        )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
