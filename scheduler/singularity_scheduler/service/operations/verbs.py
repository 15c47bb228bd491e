"""The operations that ask something of a session: signal, park, preempt, resume, ..."""

from __future__ import annotations

from typing import Any

from singularity_proxy.errors import (
    BadRequest,
    DamagedCheckpoint,
    Forbidden,
    NotFound,
    StoreRefused,
    Unsupported,
)

from singularity_scheduler.model.verbs import BY_NAME, VERBS, Verb
from singularity_scheduler.service.api import translate
from singularity_scheduler.service.api.endpoint import Endpoint
from singularity_scheduler.service.schemas import common as schemas
from singularity_scheduler.service.schemas import documents
from singularity_scheduler.service.schemas.vocabulary import nullable, record

from .table import Parameter, Reply, Who, operation

_STORE = (Unsupported, StoreRefused, DamagedCheckpoint)
"""What the way through the store may answer besides."""

MAX_WAIT_S = 3600

schemas.COMPONENTS |= {
    "Signal": record({"signum": {"type": "integer", "minimum": 1, "maximum": 64}}),
    **{
        row.body: record(
            {each.name: each.schema for each in row.arguments},
            *(each.name for each in row.arguments if each.optional),
        )
        for row in VERBS
        if row.arguments
    },
    "Server": record(
        {
            "server": {
                **nullable({"type": "string", "maxLength": 255}),
                "description": 'Name of the server ("" is the default one); null: all of them.',
            },
            "wait_s": {
                **nullable({"type": "number", "minimum": 0, "maximum": MAX_WAIT_S}),
                "description": "Seconds after which it is answered in any case; null: as others.",
            },
        },
        "server",
        "wait_s",
    ),
    "Owner": record(
        {
            "owner_pid": {
                "type": "integer",
                "minimum": 2,
                "description": "The new server's process, on the node of the session's relay.",
            }
        }
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
    await call.controller.desk.signal(
        view, call.body["signum"], call.caller.name, call.key, call.fingerprint
    )
    return Reply(call.controller.status(await call.session()))


def _declare_change(row: Verb) -> None:
    """Declare ``POST sessions/{session}/VERB``; the operation is called VERB_session."""

    async def act(call: Endpoint) -> Reply:
        view = await call.session()
        done = await call.controller.desk.act(
            view, row.name, call.body, call.caller.name, call.key, call.fingerprint
        )
        return Reply(call.controller.status(done))

    def explain(call: Endpoint, body: dict[str, Any]) -> None:
        translate.read_arguments(row, body, {})

    act.__name__ = f"{row.name}_session"
    operation(
        "POST",
        f"sessions/{{session}}/{row.name}",
        row.summary,
        answer="SessionStatus",
        body=row.body,
        verb=row.name,
        explain=explain if row.reads_again else None,
        errors=_STORE if row.uses_store else (),
    )(act)


for _row in VERBS:
    if _row.is_change:
        _declare_change(_row)


@operation(
    "POST",
    "sessions/{session}/fork",
    BY_NAME["fork"].summary,
    answer="SessionStatus",
    body=BY_NAME["fork"].body,
    status=201,
    errors=_STORE,
    headers={"Location": "Address of the new session."},
    verb="fork",
)
async def fork_session(call: Endpoint) -> Reply:
    view = await call.session()
    made = await call.controller.desk.fork(
        view, call.body, call.caller.name, call.key, call.fingerprint, call.caller.server
    )
    where = f"{call.request.path.rstrip('/').rsplit('/', 2)[0]}/{made.id}"
    return Reply(call.controller.status(made), headers={"Location": where})


@operation(
    "POST",
    "sessions/{session}/reopen",
    BY_NAME["reopen"].summary,
    answer="SessionStatus",
    body="Nothing",
    verb="reopen",
)
async def reopen_session(call: Endpoint) -> Reply:
    view = await call.session()
    done = await call.controller.desk.reopen(view, call.caller.name, call.key, call.fingerprint)
    return Reply(call.controller.status(done))


@operation(
    "GET",
    "sessions/{session}/checkpoints",
    "What the store has of it, newest first; of an ended session too.",
    answer="CheckpointList",
)
async def list_checkpoints(call: Endpoint) -> Reply:
    return Reply({"checkpoints": documents.checkpoints_document(await call.session())})


@operation(
    "DELETE",
    "sessions/{session}/checkpoints/{checkpoint}",
    "Delete one checkpoint, by its id or name; answers those that are left.",
    answer="CheckpointList",
    verb="drop",
)
async def delete_checkpoint(call: Endpoint) -> Reply:
    view = await call.session()
    await call.controller.desk.drop(view, call.path_values["checkpoint"], call.caller.name)
    return Reply({"checkpoints": documents.checkpoints_document(await call.session())})


@operation(
    "POST",
    "sessions/{session}/checkpoints/{checkpoint}/proof",
    "Prove one checkpoint now, by its id or name: read all of it, bring its processes back without "
    "a trace and throw them away. Answers when that is done, with `proved_at` or `unproved` of it; "
    "the session is not touched.",
    answer="CheckpointList",
    body="Nothing",
    verb="prove",
    errors=_STORE,
)
async def prove_checkpoint(call: Endpoint) -> Reply:
    view = await call.session()
    await call.controller.proofs.prove(view, call.path_values["checkpoint"])
    return Reply({"checkpoints": documents.checkpoints_document(await call.session())})


@operation(
    "GET",
    "sessions/{session}/devices",
    "Memory and utilisation of each of its devices, as its node told last; in the event stream as "
    "`devices` when they change.",
    answer="SessionDevices",
)
async def get_session_devices(call: Endpoint) -> Reply:
    return Reply(call.controller.device_board.document(await call.session()))


@operation(
    "GET",
    "sessions/{session}/connection",
    "How Jupyter's clients reach its kernel; it holds a key.",
    answer="Connection",
    who=Who.SESSION_USER,
)
async def get_connection(call: Endpoint) -> Reply:
    view = await call.session()
    if not (call.caller.is_user and call.caller.name == view.user):
        raise Forbidden("only the user of a session may have the key of its kernel")
    found = await call.controller.commander.transfers.clients(view)
    if not isinstance(found, dict):
        raise NotFound(
            f"{view.label} has no kernel connection that its node knows of; a session whose node "
            "is lost has one again when it is back",
            session=view.id,
        )
    return Reply({"connection": found})


# -- servers that stop and start ------------------------------------------------------------


def _own(call: Endpoint) -> str:
    user = call.path_values["user"]
    if not call.caller.admin and not (call.caller.is_user and call.caller.name == user):
        raise Forbidden("only the user and administrators may ask for this user's notebooks")
    return user


@operation(
    "PUT",
    "users/{user}/suspended",
    "A notebook server is about to stop: suspend its notebooks instead of ending them. May be "
    "repeated.",
    answer="Hibernated",
    who=Who.OWNER,
    body="Server",
)
async def hibernate_user(call: Endpoint) -> Reply:
    user = _own(call)
    server, wait_s = call.body.get("server"), call.body.get("wait_s")
    return Reply(await call.controller.desk.hibernate(user, server, call.caller.name, wait_s))


@operation(
    "GET",
    "users/{user}/suspended",
    "A user's notebooks that are in the store or on their way, with the kernel ids they had; to "
    "the user, also how to reach their relays.",
    answer="SuspendedNotebooks",
    who=Who.OWNER,
    query=(
        Parameter(
            "server",
            {"type": "string", "maxLength": 255},
            'Only those of this server ("" is the default one).',
        ),
        Parameter(
            "live",
            {"type": "boolean"},
            "Whether those that run are listed too.",
            False,
        ),
    ),
)
async def list_suspended(call: Endpoint) -> Reply:
    user = _own(call)
    keys = call.caller.is_user and call.caller.name == user
    found = await call.controller.desk.suspended(
        user, call.query["server"], keys, call.query["live"]
    )
    return Reply({"notebooks": found})


@operation(
    "PUT",
    "sessions/{session}/owner",
    "A restarted notebook server takes its session over: it is suspended when that process is "
    "gone, as with the server that started it.",
    answer="SessionStatus",
    body="Owner",
)
async def own_session(call: Endpoint) -> Reply:
    view = await call.session()
    done = await call.controller.desk.own(view, call.body["owner_pid"])
    return Reply(call.controller.status(done))
