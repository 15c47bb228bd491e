"""Which store a store is: so that an empty folder, or another one's, is never taken for it.

A folder that is not mounted looks like an empty store, and everything that was in it like deleted.
So each store has an object with an id that is made once, and whoever used it knows that id.
"""

from __future__ import annotations

import json
import uuid

from singularity_proxy.errors import StoreChanged

from .base import Moved, ObjectMissing, ObjectStore

IDENTITY = "+store"
"""The object; no user's name begins like this (`layout.component`)."""


def read_identity(store: ObjectStore) -> str:
    """The id of the store; "": it has none (yet). Raises what the store raises."""
    try:
        found = json.loads(store.get(IDENTITY))
    except (ObjectMissing, ValueError):
        return ""
    return str(found.get("id") or "") if isinstance(found, dict) else ""


def give_identity(store: ObjectStore) -> str:
    """The id of the store, which gets one if it has none."""
    while not (found := read_identity(store)):
        made = uuid.uuid4().hex
        try:
            store.swap(IDENTITY, json.dumps({"id": made}).encode(), None)
        except Moved:
            continue
        return made
    return found


def check_identity(store: ObjectStore, known: str) -> None:
    """Raise `StoreChanged` unless the store is the one with the id `known`."""
    found = read_identity(store)
    if found == known:
        return
    what = "another one" if found else "not the one, or no longer the one,"
    empty = "" if found else " (is it mounted?)"
    raise StoreChanged(
        f"the checkpoint store {store.url} is {what} that this node has used{empty}; nothing was "
        "changed and nothing is forgotten: put that one back, and everything in it can be used "
        "again",
        store=store.url,
        known=known,
        found=found,
    )
