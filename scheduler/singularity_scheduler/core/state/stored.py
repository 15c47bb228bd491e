"""What the store has of a session: its checkpoints, and what a restore brought back. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CAUSES = ("", "periodic", "restore", "move", "drain", "suspend")
"""What a checkpoint was made for. "": somebody asked for it, or nobody knows any more; "restore":
its session went back to an older one; "drain": its node is emptied."""


@dataclass(frozen=True)
class CheckpointRef:
    """One stored checkpoint of a session, as its agent reported it."""

    id: str
    at: float
    bytes: int
    """What it would take unshared and uncompressed."""
    level: str
    """"process": everything; "device": device state alone; "files": files alone."""
    name: str = ""
    """Given by a person; "": it is one of those that retention trims."""
    stored_bytes: int = 0
    """What it takes in the store, shared chunks included."""
    sent_bytes: int = 0
    """What had to be sent for it: chunks the store did not have yet."""
    incarnation: int = 1
    reason: str = ""
    """Why its level is not higher."""
    damaged: str = ""
    """What was found wrong with it; "": nothing."""
    dropped: bool = False
    """Nobody sees it any more; it is deleted from the store as soon as a node can do that."""
    set_id: str = ""
    """Of a part of a gang: what the set is called that the other parts stored with it; "": it is in
    none."""
    undo_until: float = 0.0
    """Until when it is kept although its session has ended, so that the end can be taken back
    (UNIX seconds); 0.0: it is not kept for that."""
    proof_at: float = 0.0
    """When it was tried whether it comes back (UNIX seconds); 0.0: never."""
    proof_fault: str = ""
    """Why it did not; "": it did, or that was never tried."""
    cause: str = ""
    """One of `CAUSES`."""

    @property
    def whole(self) -> bool:
        """Whether a session can come back from it."""
        return self.level == "process" and not self.damaged and not self.dropped

    @property
    def proved_at(self) -> float | None:
        """When it was found to come back; None: it was not."""
        return self.proof_at if self.proof_at and not self.proof_fault else None


@dataclass(frozen=True)
class CheckpointSet:
    """What all parts of a gang stored at one place; it is whole."""

    id: str
    of: Mapping[str, CheckpointRef]
    """Session -> its checkpoint."""

    @property
    def at(self) -> float:
        """When the last part of it was stored."""
        return max(reference.at for reference in self.of.values())

    @property
    def name(self) -> str:
        return next((c.name for c in self.of.values() if c.name), "")


@dataclass(frozen=True)
class LossReport:
    """What a restore brought back and what it could not."""

    level: str
    back: tuple[str, ...]
    lost: tuple[str, ...]
    rolled_back: bool
    """Whether the session is older than it was: what it did since the checkpoint is undone."""
    hashes_checked: int
    checkpoint: str
    at: float = 0.0
    requests_again: int = 0
    """Requests of Jupyter's clients since the checkpoint that are carried out again."""
    outputs_rolled_back: int = 0
    """Outputs that came after the checkpoint."""
    requests_lost: int = 0
    """Requests since the checkpoint that nobody has any more."""


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay. Those with a name stay until they are deleted or too old."""

    newest: int = 5
    """How many without a name are kept of a session."""
    days: float = 0.0
    """Those older than this go, named ones too; 0: never. What a session would come back from
    stays."""
    undo_end_s: float = 86400.0
    """Seconds for which the newest one of a session stays after its end, whatever ended it; 0: it
    goes with the session."""
