"""Every place where a process can die in the middle of something, by name.

`on_step(name)` is called there. Tests end the process at each of them; nobody else uses them.
"""

from __future__ import annotations

from collections.abc import Callable

OnStep = Callable[[str], None]

SAVE = {
    "save.registered": "the head says that this checkpoint is being written",
    "save.base_pinned": "the chunks of the checkpoint before are protected",
    "save.pinned": "the chunks that are sent next are protected",
    "save.chunk": "a chunk was sent",
    "save.chunks": "all chunks are there",
    "save.flushed": "all chunks survive a power failure",
    "save.manifest": "the manifest is there, not yet listed",
    "save.published": "the head has moved: the checkpoint is listed",
    "save.unpinned": "what protected the chunks is removed",
}
DELETE = {
    "delete.unlisted": "the head does not list the checkpoint any more",
    "delete.removed": "its manifest is removed",
}
COLLECT = {
    "collect.listed": "all chunks are listed",
    "collect.judged": "it is known which chunks nothing refers to",
    "collect.condemned": "they are condemned, for every writer to see",
    "collect.judged_again": "those that a writer took up meanwhile are spared",
    "collect.chunk": "a chunk is removed",
    "collect.swept": "all of them are removed",
    "collect.pardoned": "the list of condemned chunks is removed",
    "collect.leftovers": "what dead writers left is removed",
}
FOLDER = {
    "folder.written": "an object is written beside its place",
    "folder.synced": "it survives a power failure, still beside its place",
    "folder.renamed": "it is in its place",
    "folder.swap": "a compare-and-swap has compared",
    "folder.delete": "a conditional delete has compared",
}
RESTORE = {
    "restore.manifest": "the manifest is read",
    "restore.created": "the files are there, empty",
    "restore.chunk": "a chunk is read, checked and written",
    "restore.finished": "modes and times are set",
}
STEPS = {**SAVE, **DELETE, **COLLECT, **FOLDER, **RESTORE}


def nothing(name: str) -> None:
    """The `on_step` of everybody but tests."""
