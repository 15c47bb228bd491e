"""The checkpoints of one user: what the node agent calls.

    box = Checkpoints(open_store(url), "alice", open_keys(source))
    box.save(Request(session, epoch, "process"), parts)
    box.list(session)
    box.restore(session, into=folder)

All calls block; the agent runs them in threads. They are safe against each other, also between
processes and machines.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from singularity_proxy.errors import (
    DamagedCheckpoint,
    KeyUnavailable,
    NotFound,
    SingularityError,
)

from .chunks import Codec
from .cleaning.collect import (
    DEAD_AFTER_S,
    FULL_DEAD_AFTER_S,
    FULL_SPARE_S,
    SPARE_S,
    Collected,
    collect,
)
from .cleaning.retention import Policy, keep
from .cleaning.usage import Freeable, freeable, said
from .files import Part
from .heads import Heads, checkpoint_of
from .keys import KeyProvider
from .layout import UserKeys
from .loading import MissingManifest, read_damaged, read_manifest
from .manifest import Head, Manifest, Summary
from .progress import OnProgress
from .reader import Place, Reader, Restored, damaged, empty_folder
from .saving.measure import share_of_pages, share_of_pieces
from .saving.room import MakeRoom, RoomStore
from .saving.writer import Request, save
from .steps import OnStep, nothing
from .stores.base import ObjectStore

log = logging.getLogger("singularity.checkpoint")


class Checkpoints:
    """The checkpoints of one user in one store; encrypted when there are keys."""

    def __init__(self, store: ObjectStore, user: str, keys: KeyProvider | None = None) -> None:
        self.store, self.user = store, user
        self._provider = keys
        self._keys = UserKeys(user)
        self._heads = Heads(store, self._keys)
        self._codecs: dict[str | None, Codec] = {}

    # ---- saving ----------------------------------------------------------------------------------

    def save(
        self,
        request: Request,
        parts: Iterable[Part],
        *,
        progress: OnProgress | None = None,
        cancel: threading.Event | None = None,
        on_step: OnStep = nothing,
        threads: int | None = None,
        keep_free: int = 0,
        make_room: MakeRoom | None = None,
    ) -> Summary:
        """Save files as a checkpoint that is listed, and the head's, when this returns; see
        `writer.save` for errors. After a failure or a crash the same call sends only what is not
        there yet. A store without room is collected at once, by `make_room` (None: the garbage of
        this user); `keep_free` bytes of it stay free for others."""
        room = RoomStore(
            self.store,
            make_room or self.make_room,
            lambda: self.what_frees(request.session),
            keep_free,
        )
        return save(
            room,
            self.user,
            self._current(),
            request,
            parts,
            progress=progress,
            cancel=cancel,
            on_step=on_step,
            threads=threads,
        )

    def claim(self, session: str, epoch: int) -> None:
        """A new epoch of the session begins: from now on no agent of an older one can publish a
        checkpoint. Called by the agent that takes the session over. Raises StaleEpoch."""
        self._heads.claim(self._keys.session(session), epoch)

    # ---- looking ---------------------------------------------------------------------------------

    def head(self, session: str) -> Head:
        """Epoch, newest checkpoint, list and writers: one small read."""
        return self._heads.read(self._keys.session(session))

    def list(self, session: str) -> builtins.list[Summary]:
        """The checkpoints of a session, oldest first: one small read."""
        return builtins.list(self.head(session).complete)

    def records_since(self, time: float, but: builtins.list[str]) -> Iterator[dict[str, Any]]:
        """Yield the record of the newest checkpoint of each of the user's sessions `but` some, as
        far as it is newer than `time` (seconds since 1970) and can be read."""
        for session in self._heads.sessions():
            with contextlib.suppress(SingularityError):
                complete = self._heads.read(session).complete
                if complete and complete[-1].time > time and complete[-1].session not in but:
                    yield self._manifest(complete[-1]).record

    def find(self, session: str, checkpoint: str | None = None) -> Summary:
        """One checkpoint by id or name (the newest of that name); None: the head's. Raises
        NotFound."""
        return checkpoint_of(self.head(session), session, checkpoint)

    def manifest(self, session: str, checkpoint: str | None = None) -> Manifest:
        """Files and record of a checkpoint, without their contents. Raises NotFound,
        DamagedCheckpoint, KeyUnavailable."""
        return self._manifest(self.find(session, checkpoint))

    # ---- restoring -------------------------------------------------------------------------------

    def restore(
        self,
        session: str,
        checkpoint: str | None = None,
        *,
        into: str | os.PathLike[str] | None = None,
        place: Place | None = None,
        owner: tuple[int, int] | None = None,
        progress: OnProgress | None = None,
        cancel: threading.Event | None = None,
        on_step: OnStep = nothing,
        threads: int | None = None,
    ) -> Restored:
        """Write the files of a checkpoint below `into`, an empty or new folder; or each below the
        existing folder that `place(part)` names (None leaves it out), so that device state can go
        to /dev/shm and files to a disk. Nothing is written over. On failure what was written is
        removed.

        Called by the agent that resumes a session; for a fork with the id of the other session.
        Raises NotFound, DamagedCheckpoint (its `older` names the next older whole checkpoint),
        KeyUnavailable, Conflict, NoSpace, StoreUnavailable, CheckpointCancelled.
        """
        summary = self.find(session, checkpoint)
        manifest = self._manifest(summary)
        on_step("restore.manifest")
        if place is None:
            if into is None:
                raise TypeError("restore needs `into` or `place`")
            folder = os.fspath(into)
            empty_folder(folder)

            def place(part: Any) -> str:
                return folder

        return self._reader(summary, manifest).restore(
            place,
            owner=owner,
            progress=progress,
            cancel=cancel,
            on_step=on_step,
            threads=threads,
        )

    def verify(
        self,
        session: str,
        checkpoint: str | None = None,
        *,
        but: Collection[str] = (),
        progress: OnProgress | None = None,
        cancel: threading.Event | None = None,
        threads: int | None = None,
    ) -> int:
        """Read a checkpoint and check every chunk, without those of the kinds `but`, which
        `restore` has read; how many. Raises what `restore` raises. A chunk that is found damaged is
        sent again by the next save that has it."""
        summary = self.find(session, checkpoint)
        reader = self._reader(summary, self._manifest(summary))
        return reader.verify(but=but, progress=progress, cancel=cancel, threads=threads)

    def check_chunks(self, session: str, checkpoint: str | None = None) -> None:
        """Raise DamagedCheckpoint when a chunk of a checkpoint is missing or has another length.
        None is read but those that were found damaged before. Raises NotFound, KeyUnavailable."""
        summary = self.find(session, checkpoint)
        reader = self._reader(summary, self._manifest(summary))
        reader.check_stored(self._sizes(), read_damaged(self.store, self._keys))

    # ---- removing --------------------------------------------------------------------------------

    def delete(
        self,
        session: str,
        checkpoint: str,
        *,
        epoch: int | None = None,
        head_too: bool = False,
        on_step: OnStep = nothing,
    ) -> Summary:
        """Take one checkpoint off the list. Its space is freed by `collect`. Raises NotFound,
        Conflict (it is the head's: what the session would come back from), StaleEpoch. With
        `head_too` the head's may be deleted, and the newest of the others is the head's then."""
        summary = self.find(session, checkpoint)
        self._remove(session, {summary.id}, epoch, on_step, head_too=head_too)
        return summary

    def forget(
        self,
        session: str,
        *,
        epoch: int | None = None,
        keep_named: bool = False,
        on_step: OnStep = nothing,
    ) -> builtins.list[str]:
        """The session has ended: take its checkpoints off the list, all or those without a name;
        the ids. Raises StaleEpoch."""
        keys = self._keys.session(session)
        removed = self._heads.forget(keys, epoch, keep_named=keep_named)
        on_step("delete.unlisted")
        for id in removed:
            self.store.delete(keys.manifest(id))
            on_step("delete.removed")
        return removed

    def retain(
        self,
        session: str,
        policy: Policy,
        now: float,
        *,
        epoch: int | None = None,
        on_step: OnStep = nothing,
    ) -> builtins.list[str]:
        """Take what `policy` does not keep off the list; the ids. `now` in seconds since 1970."""
        head = self.head(session)
        kept = keep(head.complete, head.checkpoint, now, policy)
        gone = {c.id for c in head.complete} - kept
        return self._remove(session, gone, epoch, on_step) if gone else []

    def collect(
        self,
        *,
        dead_after_s: float = DEAD_AFTER_S,
        spare_s: float = SPARE_S,
        on_step: OnStep = nothing,
    ) -> Collected:
        """Free the space of chunks that no checkpoint of any of the user's sessions needs; see
        `collect.collect`."""
        return collect(
            self.store,
            self.user,
            self._codec,
            dead_after_s=dead_after_s,
            spare_s=spare_s,
            on_step=on_step,
        )

    def measure_pages(self, session: str, sample: bytes) -> float:
        """Which part of pages of memory a save of `session` would send, by some of them: not what
        its newest checkpoint has, and the rest compressed."""
        codec, base = self._current(), None
        with contextlib.suppress(DamagedCheckpoint, NotFound):
            summary = self.find(session)
            if summary.key == codec.key_id:
                base = self._manifest(summary)
        return share_of_pages(self.store, self._keys, codec, base, sample)

    def measure_pieces(self, pieces: Sequence[bytes]) -> float:
        """The same of pieces of device state, whichever checkpoint has them."""
        return share_of_pieces(self.store, self._keys, self._current(), pieces)

    def make_room(self) -> int:
        """Collect now what nobody needs, also what is young, because the store is full; the bytes
        that were freed. Raises nothing: who finds no room is told why."""
        try:
            return self.collect(dead_after_s=FULL_DEAD_AFTER_S, spare_s=FULL_SPARE_S).bytes
        except SingularityError as error:
            log.warning("no room could be made in %s: %s", self.store.url, error.message)
            return 0

    def freeable(self) -> builtins.list[Freeable]:
        """What deleting checkpoints would free, by session; see `usage.freeable`."""
        return freeable(self.store, self.user, self._codec)

    def what_frees(self, session: str) -> str:
        """What would make room for a checkpoint of `session`, as the end of a sentence. Raises
        nothing."""
        try:
            return said(self.freeable(), but=session)
        except SingularityError:
            return ""

    # ---- inside ----------------------------------------------------------------------------------

    def _current(self) -> Codec:
        """The codec of what is saved now."""
        codec = Codec(self.user, self._provider.current() if self._provider else None)
        return self._codecs.setdefault(codec.key_id, codec)

    def _codec(self, key: str | None) -> Codec:
        if key not in self._codecs:
            if key is None:
                self._codecs[key] = Codec(self.user, None)
            elif self._provider is None:
                raise KeyUnavailable(
                    f"a checkpoint is encrypted with key '{key}', and no keys are configured",
                    key=key,
                )
            else:
                self._codecs[key] = Codec(self.user, self._provider.get(key))
        return self._codecs[key]

    def _manifest(self, summary: Summary) -> Manifest:
        session = self._keys.session(summary.session)
        codec = self._codec(summary.key)
        try:
            return read_manifest(self.store, session, codec, summary)
        except MissingManifest:
            why = "it is missing"
        except DamagedCheckpoint as error:
            why = error.message.rpartition(": ")[2]
        raise damaged(summary, self._older(summary), "manifest", None, why)

    def _reader(self, summary: Summary, manifest: Manifest) -> Reader:
        codec = self._codec(summary.key)
        older = lambda: self._older(summary)  # noqa: E731
        return Reader(self.store, self._keys, codec, summary, manifest, older)

    def _sizes(self) -> dict[str, int]:
        """Id of a chunk -> its bytes, of all that the store has of this user."""
        return {e.key.rpartition("/")[2]: e.size for e in self.store.list(self._keys.chunks)}

    def _older(self, summary: Summary) -> Summary | None:
        """The next older checkpoint whose chunks are all there and not known to be damaged."""
        complete = self.head(summary.session).complete
        ids = [c.id for c in complete]
        before = complete[: ids.index(summary.id)] if summary.id in ids else ()
        bad, sizes = read_damaged(self.store, self._keys), self._sizes()
        for candidate in reversed(before):
            session = self._keys.session(candidate.session)
            try:
                codec = self._codec(candidate.key)
                manifest = read_manifest(self.store, session, codec, candidate)
            except (MissingManifest, SingularityError):
                continue
            if all(sizes.get(c.id) == c.stored and c.id not in bad for c in manifest.chunks):
                return candidate
        return None

    def _remove(
        self,
        session: str,
        ids: set[str],
        epoch: int | None,
        on_step: OnStep,
        head_too: bool = False,
    ) -> builtins.list[str]:
        keys = self._keys.session(session)
        removed = self._heads.remove(keys, ids, epoch, head_too=head_too)
        on_step("delete.unlisted")
        for id in removed:
            self.store.delete(keys.manifest(id))
            on_step("delete.removed")
        return removed
