"""The typed errors of the project: one sentence for people, fields for programs.

Every error that crosses a process boundary (worker, device proxy, node agent, service) is one of
these. Over a socket it travels as ``{"type": class name, "message": ..., "fields": {...}}``
(see `wire.rpc`) and is raised again under its own type on the other side.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SingularityError(Exception):
    """Base class. `message` is one sentence: what happened, what was kept, what to do.

    `fields` holds the machine-readable facts (ids, limits, sizes in bytes) behind the sentence.
    """

    reason: ClassVar[str] = "error"
    """Short stable code, used as a metrics label and in REST problem documents."""

    http_status: ClassVar[int] = 500
    """What the REST API answers when a handler raises this."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class BadRequest(SingularityError):
    """The caller asked for something that cannot be: unknown tier, 0 devices, a wrong type."""

    reason = "bad_request"
    http_status = 400


class Forbidden(SingularityError):
    """The caller may not do this: another user's session, a missing scope, a foreign process."""

    reason = "forbidden"
    http_status = 403


class NotFound(SingularityError):
    """No such session, device or checkpoint."""

    reason = "not_found"
    http_status = 404


class Conflict(SingularityError):
    """The session's state does not allow it now (park of a parked session, ended session)."""

    reason = "conflict"
    http_status = 409


class StaleEpoch(Conflict):
    """A command or attach carries an epoch lower than the newest one granted."""

    reason = "stale_epoch"


class OpenFilesChanged(Conflict):
    """Files that the processes of a checkpoint have open are gone or not as they were then."""

    reason = "open_files_changed"


class BarrierFailed(Conflict):
    """The ranks of a session did not come to a common place in time; all of them go on."""

    reason = "barrier_failed"


class LayoutRefused(Conflict):
    """Ranks that hold different shards of a model would have to share a device."""

    reason = "layout_refused"


class ImageFailed(SingularityError):
    """A process image could not be taken or restored; `fields["log"]` has CRIU's own words."""

    reason = "image_failed"


class NoSpace(SingularityError):
    """A state file could not be written; whatever was there before is still there."""

    reason = "no_space"
    http_status = 507


class ProxyFailed(SingularityError):
    """A device proxy ended and its state could not be rebuilt."""

    reason = "proxy_failed"


class TooLarge(SingularityError):
    """The request is larger than what the service takes; nothing of it was looked at."""

    reason = "too_large"
    http_status = 413


class Unavailable(SingularityError):
    """The other process (service, agent, proxy) does not answer."""

    reason = "unavailable"
    http_status = 503


class Unreached(Unavailable):
    """The other process was asked, and its answer was lost or did not come in time: whether it did
    what it was asked is not known."""

    reason = "unreached"


class ProxyNotReady(Unavailable):
    """No device proxy got ready: each ended, or was too slow, before it served. The device state is
    in its files, as it was."""

    reason = "proxy_not_ready"


class TooMany(Unavailable):
    """The caller has more open at once than one user may; nothing of the new request was done."""

    reason = "too_many"
    http_status = 429


class StoreUnavailable(Unavailable):
    """The checkpoint store does not answer, or answers that it cannot do it now."""

    reason = "store_unavailable"


class StoreChanged(StoreUnavailable):
    """At the place of the checkpoint store is an empty or another one; nothing is done with it."""

    reason = "store_changed"


class StoreRefused(SingularityError):
    """The checkpoint store does not take the credentials that it was given."""

    reason = "store_refused"
    http_status = 502


class Superseded(Conflict):
    """A checkpoint that took so long that it was taken for dead; nothing of it is listed."""

    reason = "superseded"


class CheckpointCancelled(Conflict):
    """A checkpoint or restore that was told to stop; nothing of it is listed."""

    reason = "checkpoint_cancelled"


class FileChanged(Conflict):
    """A file changed, vanished or is not a plain file of its user while it was being saved."""

    reason = "file_changed"


class DamagedCheckpoint(SingularityError):
    """What is stored is not what was saved; names part, chunk and the next older checkpoint."""

    reason = "damaged_checkpoint"


class KeyUnavailable(SingularityError):
    """The key that a checkpoint is encrypted with cannot be had."""

    reason = "key_unavailable"


class Unsupported(SingularityError):
    """Not possible on this machine or in this version; the sentence says what to do instead."""

    reason = "unsupported"
    http_status = 501


def may_pass(error: BaseException) -> bool:
    """Tell whether the same may work in a moment: a full disk or machine, somebody who does not
    answer yet. What is gone stays gone."""
    gone = isinstance(error, FileNotFoundError | NotADirectoryError)
    return isinstance(error, OSError | NoSpace | Unavailable) and not gone


def _types(base: type[SingularityError]) -> dict[str, type[SingularityError]]:
    found = {base.__name__: base}
    for sub in base.__subclasses__():
        found.update(_types(sub))
    return found


def to_wire(error: BaseException) -> dict[str, Any]:
    """`error` as the JSON object that `from_wire` turns back; for `wire.rpc` and the REST API."""
    if isinstance(error, SingularityError):
        return {
            "type": type(error).__name__,
            "message": error.message,
            "fields": error.fields,
        }
    return {
        "type": "SingularityError",
        "message": f"{type(error).__name__}: {error}",
        "fields": {},
    }


def from_wire(data: dict[str, Any]) -> SingularityError:
    """The error behind `to_wire`'s object; an unknown type becomes a plain `SingularityError`."""
    cls = _types(SingularityError).get(str(data.get("type")), SingularityError)
    fields = data.get("fields")
    return cls(
        str(data.get("message", "unknown error")),
        **(fields if isinstance(fields, dict) else {}),
    )
