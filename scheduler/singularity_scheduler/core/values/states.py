"""The one table of session states: two axes, what moves them, and the words people read.

A session has a process state (its process tree) and a device state (its right to devices). Both
tables are data: (state, event) -> next state, and what is not in them is an `InvalidTransition`.
Events, metrics, API, UI and documentation take their names and meanings from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from singularity_proxy.errors import Conflict

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import Refused, refuse


class ProcessState(str, Enum):
    """Where the session's process tree is."""

    QUEUED = "queued"
    STARTING = "starting"
    LIVE = "live"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DeviceState(str, Enum):
    """Where the session's devices are."""

    NONE = "none"
    WAITING = "waiting"
    ATTACHING = "attaching"
    HELD = "held"
    PARKING = "parking"
    PARKED = "parked"
    RESIZING = "resizing"


class ProcessEvent(str, Enum):
    """What moves a process state."""

    START = "start"
    LIVE = "live"
    SUSPEND = "suspend"
    SUSPENDED = "suspended"
    SUSPEND_FAILED = "suspend_failed"
    RESUME = "resume"
    RESUME_FAILED = "resume_failed"
    LOST = "lost"
    FOUND = "found"
    RETRY = "retry"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    REOPEN = "reopen"


class DeviceEvent(str, Enum):
    """What moves a device state. ``_SAVED``: for a session whose device state exists."""

    NEED = "need"
    WITHDRAW = "withdraw"
    WITHDRAW_SAVED = "withdraw_saved"
    GRANT = "grant"
    ATTACHED = "attached"
    ATTACH_FAILED = "attach_failed"
    ATTACH_FAILED_SAVED = "attach_failed_saved"
    PARK = "park"
    PARKED = "parked"
    PARK_FAILED = "park_failed"
    RESIZE = "resize"
    RESIZED = "resized"
    RESIZE_FAILED = "resize_failed"
    STORED = "stored"
    LOST = "lost"
    RECLAIM = "reclaim"
    RELEASE = "release"
    FREED = "freed"


_P = ProcessState
_PE = ProcessEvent
_D = DeviceState
_DE = DeviceEvent

FINAL = frozenset({_P.COMPLETED, _P.FAILED, _P.CANCELLED})
"""Process states of sessions that have ended; nothing but a reopen leaves them."""

LEASED = frozenset({_D.ATTACHING, _D.HELD, _D.RESIZING, _D.PARKING})
"""Device states in which physical devices belong to the session under a lease."""

CHANGING = frozenset({_D.ATTACHING, _D.RESIZING, _D.PARKING})
"""Device states in which its node is just changing that."""

PROCESS_TRANSITIONS: dict[tuple[ProcessState, ProcessEvent], ProcessState] = {
    (_P.QUEUED, _PE.START): _P.STARTING,
    (_P.STARTING, _PE.LIVE): _P.LIVE,
    (_P.LIVE, _PE.SUSPEND): _P.SUSPENDING,
    (_P.SUSPENDING, _PE.SUSPENDED): _P.SUSPENDED,
    (_P.SUSPENDING, _PE.SUSPEND_FAILED): _P.LIVE,
    (_P.SUSPENDED, _PE.RESUME): _P.RESUMING,
    (_P.RESUMING, _PE.LIVE): _P.LIVE,
    (_P.RESUMING, _PE.RESUME_FAILED): _P.SUSPENDED,
    # Its node is gone for good: what is left of it is in the store.
    **{(state, _PE.LOST): _P.SUSPENDED for state in (_P.LIVE, _P.SUSPENDING, _P.RESUMING)},
    # The node came back with it before anybody else had started it.
    (_P.SUSPENDED, _PE.FOUND): _P.LIVE,
    # A run that was killed, and of which nothing is left, starts from its beginning.
    **{
        (state, _PE.RETRY): _P.QUEUED
        for state in (_P.LIVE, _P.SUSPENDING, _P.SUSPENDED, _P.RESUMING)
    },
    **{
        (state, _PE.COMPLETE): _P.COMPLETED
        for state in (_P.STARTING, _P.LIVE, _P.SUSPENDING, _P.RESUMING)
    },
    **{(state, _PE.FAIL): _P.FAILED for state in _P if state not in FINAL},
    **{(state, _PE.CANCEL): _P.CANCELLED for state in _P if state not in FINAL},
    # Its end is taken back: its newest checkpoint is still in the store.
    **{(state, _PE.REOPEN): _P.SUSPENDED for state in FINAL},
}

DEVICE_TRANSITIONS: dict[tuple[DeviceState, DeviceEvent], DeviceState] = {
    (_D.NONE, _DE.NEED): _D.WAITING,
    (_D.PARKED, _DE.NEED): _D.WAITING,
    (_D.WAITING, _DE.WITHDRAW): _D.NONE,
    (_D.WAITING, _DE.WITHDRAW_SAVED): _D.PARKED,
    (_D.WAITING, _DE.GRANT): _D.ATTACHING,
    (_D.ATTACHING, _DE.ATTACHED): _D.HELD,
    (_D.ATTACHING, _DE.ATTACH_FAILED): _D.NONE,
    (_D.ATTACHING, _DE.ATTACH_FAILED_SAVED): _D.PARKED,
    (_D.HELD, _DE.PARK): _D.PARKING,
    (_D.PARKING, _DE.PARKED): _D.PARKED,
    (_D.PARKING, _DE.PARK_FAILED): _D.HELD,
    (_D.HELD, _DE.RESIZE): _D.RESIZING,
    (_D.RESIZING, _DE.RESIZED): _D.HELD,
    (_D.RESIZING, _DE.RESIZE_FAILED): _D.HELD,
    # The device state went to the store together with the process image.
    (_D.HELD, _DE.STORED): _D.PARKED,
    # The node lost its right and has parked the session by itself.
    **{(state, _DE.LOST): _D.PARKED for state in LEASED},
    # A node came back with devices that the ledger had given up: take them back in order.
    **{(state, _DE.RECLAIM): _D.PARKING for state in (_D.NONE, _D.WAITING, _D.PARKED)},
    # The session ends: what it holds stays leased until the agent says that it is free.
    **{(state, _DE.RELEASE): _D.PARKING for state in LEASED},
    **{(state, _DE.RELEASE): _D.NONE for state in (_D.NONE, _D.WAITING, _D.PARKED)},
    (_D.PARKING, _DE.FREED): _D.NONE,
}

PROCESS_MEANING: dict[ProcessState, str] = {
    _P.QUEUED: "accepted, not started yet",
    _P.STARTING: "its process is being started",
    _P.LIVE: "its process runs",
    _P.SUSPENDING: "its process image and device state are being written to the store",
    _P.SUSPENDED: "everything of it is in the store; it uses no node until it is called back",
    _P.RESUMING: "its process is being restored from the store",
    _P.COMPLETED: "ended normally",
    _P.FAILED: "ended with an error; the reason says which",
    _P.CANCELLED: "ended on request",
}

DEVICE_MEANING: dict[DeviceState, str] = {
    _D.NONE: "uses no device; the first device call takes one",
    _D.WAITING: "waits for its devices; the code that called a device is blocked meanwhile",
    _D.ATTACHING: "its devices are being attached and its state restored on them",
    _D.HELD: "holds its devices",
    _D.PARKING: "its device state is being saved and its devices freed",
    _D.PARKED: "its device state is kept in host memory; the next device call brings it back",
    _D.RESIZING: "it goes on with more or fewer physical devices behind the same virtual ones",
}

WORDS: dict[str, str] = {
    "queued": PROCESS_MEANING[_P.QUEUED],
    "starting": PROCESS_MEANING[_P.STARTING],
    "ready": "its process runs and uses no device yet",
    "waiting": DEVICE_MEANING[_D.WAITING],
    "attaching": DEVICE_MEANING[_D.ATTACHING],
    "running": "its process runs and holds its devices",
    "parking": DEVICE_MEANING[_D.PARKING],
    "parked": DEVICE_MEANING[_D.PARKED],
    "resizing": DEVICE_MEANING[_D.RESIZING],
    "migrating": "it is being moved to other devices or to another node",
    "suspending": PROCESS_MEANING[_P.SUSPENDING],
    "suspended": PROCESS_MEANING[_P.SUSPENDED],
    "resuming": PROCESS_MEANING[_P.RESUMING],
    "completed": PROCESS_MEANING[_P.COMPLETED],
    "failed": PROCESS_MEANING[_P.FAILED],
    "cancelled": PROCESS_MEANING[_P.CANCELLED],
}
"""The words shown to people and their one-line meanings."""

_LIVE_WORD = {_D.NONE: "ready", _D.HELD: "running"}


def word(process: ProcessState, device: DeviceState, moving: bool = False) -> str:
    """The one word for people, derived from both axes; a key of `WORDS`."""
    if moving and process in (_P.SUSPENDING, _P.SUSPENDED, _P.RESUMING):
        return "migrating"
    if process is not _P.LIVE:
        return str(process.value)
    if moving and device in (_D.PARKING, _D.WAITING, _D.ATTACHING):
        return "migrating"
    return _LIVE_WORD.get(device) or str(device.value)


class InvalidTransition(Conflict):
    """The table has no such step. Fields: session, start, event, story (its last steps)."""

    reason = "invalid_transition"


def refuse_step(session: str | int, start: str, event: str, story: Iterable[str]) -> Refused:
    """Make the `InvalidTransition` to raise; `story`: the last steps of the session."""
    steps = tuple(story)
    return refuse(
        InvalidTransition,
        because("no_such_step", session=session, start=start, event=event, story=steps),
        session=session,
        start=start,
        event=event,
        story=list(steps),
    )


def next_process(
    state: ProcessState, event: ProcessEvent, session: str, story: tuple[str, ...] = ()
) -> ProcessState:
    """The process state after `event`, or `InvalidTransition`."""
    try:
        return PROCESS_TRANSITIONS[state, event]
    except KeyError:
        raise refuse_step(session, state.value, event.value, story) from None


def next_device(
    state: DeviceState, event: DeviceEvent, session: str, story: tuple[str, ...] = ()
) -> DeviceState:
    """The device state after `event`, or `InvalidTransition`."""
    try:
        return DEVICE_TRANSITIONS[state, event]
    except KeyError:
        raise refuse_step(session, state.value, event.value, story) from None
