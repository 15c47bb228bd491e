"""Reads manifests and chunks and says in typed errors what is wrong with them."""

from __future__ import annotations

from singularity_proxy.errors import DamagedCheckpoint

from .chunks import Codec, Damaged
from .layout import SessionKeys, UserKeys
from .manifest import Manifest, Summary, Unreadable
from .stores.base import Data, ObjectMissing, ObjectStore


class MissingManifest(Exception):
    """A checkpoint whose manifest is not there: removed meanwhile, or lost."""


def manifest_name(checkpoint: str) -> str:
    """What stands in for the id of a chunk when a manifest is encrypted."""
    return f"manifest {checkpoint}"


def read_manifest(
    store: ObjectStore, session: SessionKeys, codec: Codec, summary: Summary
) -> Manifest:
    """The manifest of a listed checkpoint. Raises MissingManifest, DamagedCheckpoint,
    KeyUnavailable."""
    try:
        stored = store.get(session.manifest(summary.id))
    except ObjectMissing:
        raise MissingManifest(summary.id) from None
    try:
        if codec.plain_hash(stored) != summary.manifest:
            raise Damaged("its hash is wrong")
        data = bytes(codec.decode(manifest_name(summary.id), stored, check=False))
        manifest = Manifest.from_bytes(data)
        if (manifest.id, manifest.session) != (summary.id, summary.session):
            raise Damaged("it belongs to another checkpoint")
        return manifest
    except (Damaged, Unreadable) as error:
        raise DamagedCheckpoint(
            f"the manifest of checkpoint {summary.id} of session {summary.session} is damaged: "
            f"{error}",
            session=summary.session,
            checkpoint=summary.id,
            part="manifest",
        ) from None


def read_chunk(store: ObjectStore, keys: UserKeys, codec: Codec, id: str, size: int) -> Data:
    """The contents of a chunk, checked. Raises Damaged, also when it is missing."""
    try:
        stored = store.get(keys.chunk(id))
    except ObjectMissing:
        raise Damaged("it is missing") from None
    data = codec.decode(id, stored)
    if len(data) != size:
        raise Damaged("its size is wrong")
    return data


def mark_damaged(store: ObjectStore, keys: UserKeys, id: str) -> None:
    """From now on a writer that has this chunk sends it again, which repairs every checkpoint that
    needs it."""
    store.put(keys.damaged + id, [b""])


def read_damaged(store: ObjectStore, keys: UserKeys) -> set[str]:
    """Chunks to be sent again."""
    return {entry.key.removeprefix(keys.damaged) for entry in store.list(keys.damaged)}
