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

from singularity_scheduler.requests.size_spec import MAX_DEVICES
from singularity_scheduler.service.api import translate
from singularity_scheduler.service.api.endpoint import Endpoint
from singularity_scheduler.service.api.translate import MAX_CHECKPOINT_NAME
from singularity_scheduler.service.schemas import common as schemas
from singularity_scheduler.service.schemas import documents
from singularity_scheduler.service.schemas.vocabulary import (
    NAME,
    PRIORITY,
    SECONDS,
    TIER,
    listed,
    nullable,
    record,
)

from .table import Parameter, Reply, Who, operation

_STORE = (Unsupported, StoreRefused, DamagedCheckpoint)
"""What the way through the store may answer besides."""

MAX_WAIT_S = 3600

_NAMED = nullable({"type": "string", "maxLength": MAX_CHECKPOINT_NAME, "format": "printable"})
_NODE = nullable({"type": "string", "maxLength": 255, "format": "printable"})

schemas.COMPONENTS |= {
    "Signal": record({"signum": {"type": "integer", "minimum": 1, "maximum": 64}}),
    "Move": record(
        {
            "device": {
                "description": 'A device ("cpu:1"), its number, one per virtual device, or null '
                "for any other.",
                "oneOf": [
                    {"type": "null"},
                    {"type": "string"},
                    {"type": "integer"},
                    listed({"type": ["string", "integer"]}),
                ],
            },
            "node": {**_NODE, "description": "Another node instead; not together with device."},
            "cluster": {
                **_NODE,
                "description": "The best node of this cluster instead; not together with others.",
            },
        },
        "device",
        "node",
        "cluster",
    ),
    "Size": record(
        {
            "devices": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_DEVICES,
                "description": "Physical devices, from 1 to the number of its virtual ones; see "
                "`resizable` of the session.",
            }
        }
    ),
    "Checkpoint": record(
        {
            "name": _NAMED,
            "level": {
                **nullable({"type": "string", "enum": ["device", "process"]}),
                "description": "null: the best that its node can do.",
            },
        },
        "name",
        "level",
    ),
    "Keep": record(
        {
            "for_s": {
                **SECONDS,
                "maximum": 1_000_000_000,
                "description": "From now on; 0: no longer.",
            }
        }
    ),
    "TierChange": record({"tier": TIER}),
    "PriorityChange": record({"priority": PRIORITY}),
    "Suspension": record(
        {"name": {**_NAMED, "description": "For the checkpoint that it becomes."}}, "name"
    ),
    "Return": record(
        {
            "checkpoint": {**_NAMED, "description": "Id or name; null: the newest."},
            "node": {**_NODE, "description": "Only there; null: where it was, else anywhere."},
        },
        "checkpoint",
        "node",
    ),
    "Restoration": record(
        {
            "checkpoint": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_CHECKPOINT_NAME,
                "format": "printable",
                "description": "Id or name.",
            },
            "discard": {
                "type": "boolean",
                "description": "Give its present state up instead of storing it first.",
            },
        },
        "discard",
    ),
    "Fork": record(
        {
            "checkpoint": {**_NAMED, "description": "Id or name; null: the newest."},
            "name": nullable(NAME),
        },
        "checkpoint",
        "name",
    ),
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


def _explain_checkpoint(call: Endpoint, body: dict[str, Any]) -> None:
    raise BadRequest(
        f"a checkpoint's name must be printable text of at most {MAX_CHECKPOINT_NAME} characters"
    )


def _explain_keep(call: Endpoint, body: dict[str, Any]) -> None:
    raise BadRequest("for_s must be a number of seconds, 0 or more: for how long from now on")


def _explain_resize(call: Endpoint, body: dict[str, Any]) -> None:
    """The session knows what it could be asked for."""
    translate.device_count(body.get("devices"))


def _verb(verb: str, summary: str, body: str = "Nothing", **more: Any) -> None:
    """Declare ``POST sessions/{session}/VERB``; the operation is called VERB_session."""

    async def act(call: Endpoint) -> Reply:
        view = await call.session()
        done = await call.controller.desk.act(
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
_verb(
    "keep",
    "Keep it alive for so many seconds from now on, in place of what was asked before; 0: no "
    "longer. It is not parked for being idle, and counts as busy when others look for devices: a "
    "higher tier still goes first. The parameter `keep_max_s` is the longest time in all while "
    "nothing uses its devices.",
    "Keep",
    explain=_explain_keep,
)
_verb(
    "tier",
    "Change its tier, to one that is open to its user; from then on it is served, and measured, by "
    "that. Devices that it holds may go to a session that comes before it now.",
    "TierChange",
)
_verb(
    "priority",
    "Change its priority among sessions of its tier.",
    "PriorityChange",
)
_verb(
    "suspend",
    "Put everything of it into the store and free its node; nothing is lost. Answered when that is "
    "done or under way; `resume`, or a request of its notebook, brings it back.",
    "Suspension",
    errors=_STORE,
)
_verb(
    "resume",
    "Take devices now instead of at the next device call; ends a preempt. A suspended session "
    "comes back, from its newest checkpoint and where it was, or as asked; it waits when there is "
    "no room.",
    "Return",
    errors=_STORE,
)
_verb(
    "migrate",
    "Go on with other devices, on another node, or in another cluster.",
    "Move",
    errors=_STORE,
)
_verb(
    "resize",
    "Run its virtual devices, whose number does not change, on so many physical ones from now on; "
    "nothing is lost. It gets more when they are free, and its next devices when it has none.",
    "Size",
    explain=_explain_resize,
)
_verb(
    "checkpoint",
    "Store it; execution goes on. Its process too where its node can do that, else its device "
    "state.",
    "Checkpoint",
    explain=_explain_checkpoint,
    errors=_STORE,
)
_verb(
    "restore",
    "Go back to an older checkpoint of its own. Its present state is stored first.",
    "Restoration",
    errors=_STORE,
)


@operation(
    "POST",
    "sessions/{session}/fork",
    "Begin a second session, with an id of its own, where a checkpoint of this one is; answers the "
    "new one.",
    answer="SessionStatus",
    body="Fork",
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
    "Take its end back: it is suspended as of its newest checkpoint, under its own id; a batch run "
    "goes on by itself. Every end keeps that checkpoint for a while, see its `undo_end`.",
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
