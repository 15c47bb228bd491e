"""`%singularity`: what a notebook says about its session and asks for it.

The verbs go over the per-session agent socket, which has rights on this session only; no token is
involved. They run inside a cell, so the session is busy meanwhile.
"""

from __future__ import annotations

import difflib
import os
from datetime import datetime, timezone
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display
from singularity_proxy.errors import SingularityError
from singularity_proxy.wire.rpc import SyncPeer
from singularity_scheduler.client.verbs import VERBS

from .memory import device_memory
from .status import Sentence, Table, history_rows, status_rows

QUICK_S = 15.0
"""How long `status`, `why` and `history` wait for the answer."""

MOVE_S = 600.0
"""How long the verbs that move state wait; the stop button ends the wait, not the move."""

OUTSIDE = (
    "This kernel is not a Singularity session, so there is nothing to {verb}: start it from a "
    'server of the platform, with the kernel "Python 3 (Singularity)" or any other.'
)


@magics_class
class SingularityMagics(Magics):  # type: ignore[misc]
    """Holds the one line magic; registered by `load_ipython_extension`."""

    @magic_arguments()  # type: ignore[untyped-decorator]
    @argument(
        "verb",
        nargs="?",
        default="status",
        help="""status: state and reason, tier, devices, memory, last checkpoint, who waits.
        park: free the devices; variables and tensors stay, the next device call goes on.
        preempt: the same, but device calls wait until somebody resumes the session.
        suspend: free the whole node; not available in this version.
        resume: take devices now instead of at the next device call, and end a preempt.
        migrate: go on with another device. checkpoint: store the device state.
        why: why it is in its state. history: what happened so far.""",
    )  # type: ignore[untyped-decorator]
    @argument("name", nargs="?", help="checkpoint: a name for it.")  # type: ignore[untyped-decorator]
    @argument(
        "--device",
        help='migrate: the device to go to, its number or its name ("cpu:1"). Default: any other.',
    )  # type: ignore[untyped-decorator]
    @argument(
        "--limit", type=int, default=20, help="history: how many changes, newest kept (default 20)."
    )  # type: ignore[untyped-decorator]
    @line_magic  # type: ignore[untyped-decorator]
    def singularity(self, line: str) -> None:
        """Show this notebook's session, or act on it."""
        options = parse_argstring(self.singularity, line)
        verb = options.verb
        if verb not in VERBS:
            raise UsageError(_unknown_verb(verb))
        arguments = _arguments(verb, options)
        path = os.environ.get("SINGULARITY_SOCKET")
        if not path:
            display(Sentence(OUTSIDE.format(verb="show" if verb == "status" else verb)))
            return
        try:
            timeout = QUICK_S if verb in ("status", "why", "history") else MOVE_S
            with SyncPeer(path, timeout=timeout) as peer:
                answer = peer.call(verb, **arguments)
        except SingularityError as error:
            # A UsageError is shown as its sentence, without a traceback.
            raise UsageError(error.message) from None
        if verb == "status":
            # A cell runs, this one: the report of its start may still be under way.
            answer = {**answer, "busy": True, "idle_since": None}
            answer["memory"] = device_memory(answer.get("devices") or ())
        display(present(verb, answer, datetime.now(timezone.utc)))


def _unknown_verb(verb: str) -> str:
    near = difflib.get_close_matches(verb, VERBS, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"%singularity has no verb '{verb}'; {hint}It knows {', '.join(VERBS)}."


def _arguments(verb: str, options: Any) -> dict[str, Any]:
    """The call's arguments; an option that the verb does not know is the user's fault."""
    if options.name is not None and verb != "checkpoint":
        hint = " (a device is given with --device)" if verb == "migrate" else ""
        raise UsageError(f"'{verb}' takes no name{hint}; only 'checkpoint' does.")
    if options.device is not None and verb != "migrate":
        raise UsageError(f"'{verb}' takes no --device; only 'migrate' does.")
    if verb == "migrate":
        device = options.device
        if device is None:
            return {}
        return {"device": int(device) if device.isdigit() else device}
    if verb == "checkpoint":
        return {"name": options.name} if options.name else {}
    if verb == "history":
        if options.limit < 1:
            raise UsageError("--limit must be 1 or more.")
        return {"limit": options.limit}
    return {}


def present(verb: str, answer: Any, now: datetime) -> Table | Sentence:
    """The display of a verb's answer."""
    if verb == "why":
        return Sentence(str(answer.get("sentence", "")))
    if verb == "history":
        entries = answer.get("history", []) if isinstance(answer, dict) else answer
        return Table("History", history_rows(entries, now), empty="nothing happened yet")
    if verb == "status":
        title = " ".join(str(answer[k]) for k in ("id", "name") if answer.get(k))
        return Table(f"Session {title}", status_rows(answer, now))
    return Sentence(_done(verb, answer, now))


def _done(verb: str, answer: Any, now: datetime) -> str:
    """What a verb did, in one sentence: the scheduler's own reason, and where that led."""
    rows = dict(status_rows(answer, now))
    if verb == "checkpoint":
        return f"Checkpoint stored: {rows['Last checkpoint']}."
    reason = str(answer.get("reason") or answer.get("state") or "done")
    where = f" ({rows['Devices']})" if answer.get("devices") else ""
    return f"{reason[:1].upper()}{reason[1:]}{where}."
