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


async def _act(call: Endpoint) -> Reply:
    view = await call.session()
    assert call.operation.verb is not None
    done = await call.controller.act(
        view, call.operation.verb, call.body, call.caller.name, call.key, call.fingerprint
    )
    return Reply(call.controller.status(done))


@operation(
    "POST",
    "sessions/{session}/park",
    "Free its devices; its process and state stay, the next device call brings them back.",
    answer="SessionStatus",
    body="Nothing",
    verb="park",
)
async def park_session(call: Endpoint) -> Reply:
    return await _act(call)


@operation(
    "POST",
    "sessions/{session}/preempt",
    "Take its devices, nothing is lost, and hold it back until resume or migrate; a queued run "
    "does not start meanwhile.",
    answer="SessionStatus",
    body="Nothing",
    verb="preempt",
)
async def preempt_session(call: Endpoint) -> Reply:
    return await _act(call)


@operation(
    "POST",
    "sessions/{session}/suspend",
    "Free its node. Not in this version: 501.",
    answer="SessionStatus",
    body="Nothing",
    errors=(Unsupported,),
    verb="suspend",
)
async def suspend_session(call: Endpoint) -> Reply:
    return await _act(call)


@operation(
    "POST",
    "sessions/{session}/resume",
    "Take devices now instead of at the next device call; ends a preempt.",
    answer="SessionStatus",
    body="Nothing",
    verb="resume",
)
async def resume_session(call: Endpoint) -> Reply:
    return await _act(call)


@operation(
    "POST",
    "sessions/{session}/migrate",
    "Go on with other devices.",
    answer="SessionStatus",
    body="Move",
    verb="migrate",
)
async def migrate_session(call: Endpoint) -> Reply:
    return await _act(call)


@operation(
    "POST",
    "sessions/{session}/checkpoint",
    "Store its device state; execution goes on.",
    answer="SessionStatus",
    body="Checkpoint",
    explain=lambda call, body: _explain_checkpoint(),
    verb="checkpoint",
)
async def checkpoint_session(call: Endpoint) -> Reply:
    return await _act(call)


def _explain_checkpoint() -> None:
    raise BadRequest(
        f"a checkpoint's name must be printable text of at most {MAX_CHECKPOINT_NAME} characters"
    )
