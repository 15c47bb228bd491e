"""The operations that ask something of a session: signal, park, preempt, resume, ..."""

from __future__ import annotations

from typing import Any

from singularity_proxy.errors import BadRequest, Unsupported

from . import schemas
from .endpoint import Endpoint
from .operations import Reply, operation
from .translate import MAX_CHECKPOINT_NAME

schemas.COMPONENTS |= {
    "Signal": schemas.record({"signum": {"type": "integer", "minimum": 1, "maximum": 64}}),
    "Move": schemas.record(
        {
            "device": {
                "description": 'A device ("cpu:1"), its number, one per virtual device, or null '
                "for any other.",
                "oneOf": [
                    {"type": "null"},
                    {"type": "string"},
                    {"type": "integer"},
                    schemas.listed({"type": ["string", "integer"]}),
                ],
            }
        },
        "device",
    ),
    "Checkpoint": schemas.record(
        {
            "name": schemas.nullable(
                {"type": "string", "maxLength": MAX_CHECKPOINT_NAME, "format": "printable"}
            )
        },
        "name",
    ),
}


def _explain_signal(call: Endpoint, body: dict[str, Any]) -> None:
    raise BadRequest("signum must be the number of a signal, 1 to 64")


@operation(
    "POST",
    "sessions/{session}/signal",
    "Send a signal to its main process.",
    answer="SessionStatus",
    body="Signal",
    explain=_explain_signal,
    verb="signal",
)
async def signal_session(call: Endpoint) -> Reply:
    view = await call.session()
    await call.controller.signal(
        view, call.body["signum"], call.caller.name, call.key, call.fingerprint
    )
    return Reply(call.controller.status(await call.session()))


def _explain_checkpoint(call: Endpoint, body: dict[str, Any]) -> None:
    raise BadRequest(
        f"a checkpoint's name must be printable text of at most {MAX_CHECKPOINT_NAME} characters"
    )


def _verb(verb: str, summary: str, body: str = "Nothing", **more: Any) -> None:
    """Declare ``POST sessions/{session}/VERB``; the operation is called VERB_session."""

    async def act(call: Endpoint) -> Reply:
        view = await call.session()
        done = await call.controller.act(
            view, verb, call.body, call.caller.name, call.key, call.fingerprint
        )
        return Reply(call.controller.status(done))

    act.__name__ = f"{verb}_session"
    path = f"sessions/{{session}}/{verb}"
    operation("POST", path, summary, answer="SessionStatus", body=body, verb=verb, **more)(act)


_verb(
    "park", "Free its devices; its process and state stay, the next device call brings them back."
)
_verb(
    "preempt",
    "Take its devices, nothing is lost, and hold it back until resume or migrate; a queued run "
    "does not start meanwhile.",
)
_verb("suspend", "Free its node. Not in this version: 501.", errors=(Unsupported,))
_verb("resume", "Take devices now instead of at the next device call; ends a preempt.")
_verb("migrate", "Go on with other devices.", "Move")
_verb(
    "checkpoint",
    "Store its device state; execution goes on.",
    "Checkpoint",
    explain=_explain_checkpoint,
)
