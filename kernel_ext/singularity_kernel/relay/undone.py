"""What the relay says in the kernel's place of requests that a return to an older image has undone:
no image answers them any more, and a page would wait for ever. Called by `relay_store`, which keeps
the answers with the other outputs. Signs, and does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import jupyter_wire

UNDONE = (
    "the session went back to a checkpoint from before this cell was run; run the cell again if "
    "its work is wanted"
)
"""What a page is told for a cell that nobody will answer any more."""


@dataclass(frozen=True)
class Said:
    """A message for the clients of a lane; `parent`: id of the request that it answers."""

    lane: str
    kind: str
    parent: str
    parts: list[bytes]


class Answers:
    """Makes these messages; `like` gives the header of a message of the kernel, {} for none."""

    def __init__(self, signer: jupyter_wire.Signer, like: Callable[[], dict[str, Any]]) -> None:
        self._signer = signer
        self._like = like

    def end(self, lane: str, request: Sequence[bytes]) -> list[Said]:
        """The end of one request: an error, shown in the output of a cell."""
        found, head = jupyter_wire.split(request), jupyter_wire.header(request)
        kind, error = str(head.get("msg_type", "")), {"ename": "Undone", "evalue": UNDONE}
        shown = {**error, "traceback": [f"Undone: {UNDONE}"]}
        messages: list[tuple[str, list[bytes], str, dict[str, Any]]] = [
            ("iopub", [b"status"], "status", {"execution_state": "idle"}),
            (
                lane,
                found[0] if found else [],
                kind.replace("_request", "_reply"),
                {"status": "error", **shown},
            ),
        ]
        if kind == "execute_request":
            messages.insert(0, ("iopub", [b"error"], "error", shown))
        return [self._say(channel, p, k, content, head) for channel, p, k, content in messages]

    def _say(
        self, lane: str, prefix: list[bytes], kind: str, content: dict[str, Any], head: Any
    ) -> Said:
        parts = self._signer.message(prefix, kind, content, head, self._like())
        return Said(lane, kind, str(head.get("msg_id", "")), parts)
