"""JSON Schemas of what the API takes and gives; names and values come from the tables of `core`.

Requests are checked against them, the OpenAPI document shows them.
"""

from __future__ import annotations

from typing import Any

from singularity_scheduler.core.model import Kind, Tier
from singularity_scheduler.core.rules import RULES
from singularity_scheduler.core.spec import MAX_DEVICES, MAX_NAME
from singularity_scheduler.core.states import WORDS, DeviceState, ProcessState

from .problems import ERRORS

Schema = dict[str, Any]

JSON = "https://json-schema.org/draft/2020-12/schema"
SESSION_ID = r"^[A-Za-z0-9_-]{1,64}$"
MAX_PATH = 4096

LONGEST_PART = 2048
"""Characters of JSON of a run's parameters, and of its variables' names, in lists and events."""


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    """`schema` or null."""
    return {"oneOf": [schema, {"type": "null"}]}


def record(properties: dict[str, Schema], *optional: str) -> Schema:
    """An object with exactly these keys, all there but the `optional` ones."""
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def listed(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TIME: Schema = {"type": "string", "format": "date-time"}
STATE: Schema = {"type": "string", "enum": list(WORDS)}
PROCESS_STATE: Schema = {"type": "string", "enum": [s.value for s in ProcessState]}
DEVICE_STATE: Schema = {"type": "string", "enum": [s.value for s in DeviceState]}
TIER: Schema = {"type": "string", "enum": [t.value for t in Tier]}
KIND: Schema = {"type": "string", "enum": [k.value for k in Kind]}
RULE: Schema = {"type": "string", "enum": sorted(RULES)}
NAME: Schema = {
    "type": "string",
    "maxLength": MAX_NAME,
    "format": "printable",
    "description": "Printable text.",
}
PATH: Schema = {
    "type": "string",
    "pattern": r"^/[^\x00]*$",
    "maxLength": MAX_PATH,
    "description": "An absolute path.",
}

SESSION: dict[str, Schema] = {
    "id": TEXT,
    "user": TEXT,
    "kind": KIND,
    "name": TEXT,
    "tier": TIER,
    "state": {**STATE, "description": "The one word for people."},
    "process_state": PROCESS_STATE,
    "device_state": DEVICE_STATE,
    "reason": {**TEXT, "description": "Why it is in this state, for people."},
    "idle_since": nullable(TIME),
    "busy": {"type": "boolean"},
    "virtual_devices": {"type": "integer", "minimum": 1},
    "devices": {**listed(TEXT), "description": "Physical devices it holds, one per virtual one."},
    "node": TEXT,
    "epoch": COUNT,
    "created_at": TIME,
    "updated_at": TIME,
    "waiting_since": nullable(TIME),
    "queue": {
        **nullable(record({"place": {"type": "integer", "minimum": 1}, "ahead": COUNT})),
        "description": "Its place while it waits; 1 is served next.",
    },
    "last_checkpoint": nullable(ref("StoredCheckpoint")),
    "checkpoints": {**COUNT, "description": "How many the store has of it."},
    "incarnation": {**COUNT, "description": "+1 each time it went on from an older state."},
    "called_back": {
        "type": "boolean",
        "description": "Suspended, and it comes back as soon as a node has room.",
    },
    "forked_from": {**nullable(TEXT), "description": "The session it began as a copy of."},
    "loss": {**nullable(ref("LossReport")), "description": "Of its last return from the store."},
    "progress": {
        **nullable(ref("Progress")),
        "description": "Of the transfer that is under way; in the event stream as `progress`.",
    },
    "held_back": {
        "type": "boolean",
        "description": "Preempted: it gets no devices, and a queued run does not start, until it "
        "is resumed.",
    },
    "run": {
        **nullable(
            record(
                {
                    "notebook": TEXT,
                    "output": nullable(TEXT),
                    "parameters": {"type": "object"},
                    "kernel": nullable(TEXT),
                    "folder": nullable(TEXT),
                    "variables": {**listed(TEXT), "description": "Their names."},
                }
            )
        ),
        "description": "The notebook that a batch session runs.",
    },
    "exit_code": nullable({"type": "integer"}),
    "owner": record({"server": TEXT}, "server"),
}


def _in_lists() -> Schema:
    """A session in lists and events: what makes a run long may be left out."""
    run = SESSION["run"]["oneOf"][0]["properties"]
    long = "null when it is longer than 2 KiB as JSON: GET sessions/{session} has all of it."
    shortened = {
        "parameters": {**nullable(run["parameters"]), "description": f"Name -> value; {long}"},
        "variables": {**nullable(listed(TEXT)), "description": f"Their names; {long}"},
    }
    described = {
        **nullable(record({**run, **shortened})),
        "description": SESSION["run"]["description"],
    }
    return record({**SESSION, "run": described})


OTHER_WAITING = record({"user": TEXT, "name": TEXT, "tier": TIER, "devices": COUNT})

RUN = {
    "type": "object",
    "description": "A notebook to run by papermill under the session's own devices.",
    "properties": {
        "notebook": PATH,
        "output": {
            **nullable(PATH),
            "description": "Where the executed notebook is written; null: beside the notebook, "
            "named after it and the session.",
        },
        "parameters": {
            **nullable(
                {
                    "type": "object",
                    "propertyNames": {"type": "string", "format": "python-name"},
                }
            ),
            "description": "Parameter name -> JSON value.",
        },
        "kernel": nullable({"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,200}$"}),
        "folder": {**nullable(PATH), "description": "Working folder; null: the notebook's."},
        "python": {
            **nullable(PATH),
            "description": "Interpreter that has jupyter-singularity and papermill; null: the "
            "service's own.",
        },
        "variables": {
            **nullable(
                {
                    "type": "object",
                    "propertyNames": {
                        "type": "string",
                        "pattern": r"^(?!SINGULARITY_|JUPYTERHUB_)[^=\x00]+$",
                    },
                    "additionalProperties": {"type": "string", "pattern": r"^[^\x00]*$"},
                }
            ),
            "description": "Environment of the run. Stored, so no place for secrets.",
        },
    },
    "required": ["notebook"],
    "additionalProperties": False,
}

LAUNCH = {
    "type": "object",
    "description": "How the node agent starts the process; passed on, never stored.",
    "properties": {
        "mode": {"type": "string", "enum": ["capsule", "joined"]},
        "argv": nullable(listed(TEXT)),
        "env": nullable({"type": "object", "additionalProperties": TEXT}),
        "cwd": nullable(TEXT),
        "connection": {
            **nullable({"type": "object"}),
            "description": "Jupyter connection information.",
        },
        "owner_pid": nullable({"type": "integer", "minimum": 1}),
    },
    "required": ["mode"],
    "additionalProperties": False,
    "if": {"properties": {"mode": {"const": "capsule"}}},
    "then": {
        "properties": {"argv": {"type": "array", "minItems": 1}},
        "required": ["argv"],
    },
    "else": {
        "properties": {"owner_pid": {"type": "integer"}},
        "required": ["owner_pid"],
    },
}

NEW_SESSION = {
    "type": "object",
    "description": "A notebook to run (`run`), or a process to start or to join (`launch`).",
    "properties": {
        "kind": KIND,
        "name": nullable(NAME),
        "tier": nullable(TIER),
        "devices": {
            **nullable({"type": "integer", "minimum": 1, "maximum": MAX_DEVICES}),
            "description": "Virtual devices, at most what one node has.",
        },
        "run": nullable(ref("Run")),
        "launch": nullable(ref("Launch")),
        "kernel_id": {
            **nullable({"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,128}$"}),
            "description": "Jupyter's id of the kernel, so that a restarted server finds it.",
        },
        "checkpoint_every_s": {
            **nullable({"type": "number", "minimum": 0, "maximum": 1e9}),
            "description": "Seconds between checkpoints made by themselves; 0: none; null: as the "
            "service is configured.",
        },
        "checkpoint_every_steps": {
            **nullable({"type": "integer", "minimum": 0, "maximum": 1_000_000_000}),
            "description": "The same by optimizer steps.",
        },
    },
    "additionalProperties": False,
    "oneOf": [
        {
            "properties": {"run": {"type": "object"}, "kind": {"const": Kind.BATCH.value}},
            "required": ["run"],
            "not": {"required": ["launch"], "properties": {"launch": {"type": "object"}}},
        },
        {
            "properties": {"launch": {"type": "object"}},
            "required": ["launch"],
            "not": {"required": ["run"], "properties": {"run": {"type": "object"}}},
        },
    ],
}

PROBLEM = {
    "type": "object",
    "description": "A refusal (RFC 9457); more keys are facts behind the sentence.",
    "properties": {
        "type": {**TEXT, "format": "uri"},
        "title": TEXT,
        "status": {"type": "integer", "enum": sorted({e.http_status for e in ERRORS} | {405})},
        "detail": {**TEXT, "description": "One sentence: what happened, what to do."},
        "reason": {"type": "string", "enum": sorted({e.reason for e in ERRORS})},
        "error": {"type": "string", "enum": sorted({e.__name__ for e in ERRORS})},
    },
    "required": ["type", "title", "status", "detail", "reason", "error"],
}

DEVICE = record(
    {
        "id": TEXT,
        "node": TEXT,
        "type": TEXT,
        "name": TEXT,
        "capacity_bytes": COUNT,
        "session": {
            **nullable(TEXT),
            "description": 'Who holds it; "other": somebody one may not see.',
        },
        "uuid": {
            **TEXT,
            "description": "Of the GPU, whatever its number; of a cpu device one that is made up "
            "and always the same.",
        },
        "drained": {
            **nullable(record({"by": nullable(TEXT), "reason": TEXT, "at": nullable(TIME)})),
            "description": "Why no session gets it now; `by` is null when it was drained for what "
            "it reported itself.",
        },
        "health": {
            **record(
                {
                    "present": {
                        "type": "boolean",
                        "description": "False: its driver says that it is gone.",
                    },
                    "memory_used_bytes": nullable(COUNT),
                    "memory_total_bytes": nullable(COUNT),
                    "utilisation_percent": nullable({"type": "number", "minimum": 0}),
                    "temperature_c": nullable({"type": "number"}),
                    "power_w": nullable({"type": "number"}),
                    "ecc_corrected": nullable(COUNT),
                    "ecc_uncorrected": nullable(COUNT),
                    "row_remap_pending": nullable({"type": "boolean"}),
                    "clock_limits": {
                        **listed(TEXT),
                        "description": "What keeps its clocks down now.",
                    },
                    "xids": {
                        **listed(record({"code": COUNT, "at": nullable(TIME)})),
                        "description": "Its newest driver errors (Xid), oldest first.",
                    },
                    "trouble": {**TEXT, "description": "Why there are no figures."},
                }
            ),
            "description": "What the device says of itself; null: it does not tell.",
        },
    }
)

CLUSTER = record(
    {
        "nodes": listed(
            record(
                {
                    "id": TEXT,
                    "connected": {"type": "boolean"},
                    "devices": COUNT,
                    "images": {
                        **record({"available": {"type": "boolean"}, "reason": TEXT}),
                        "description": "Whether it can store whole sessions and bring them back.",
                    },
                    "store": {**nullable(TEXT), "description": "Where its checkpoints go."},
                }
            )
        ),
        "devices": listed(ref("Device")),
        "tiers": listed(TIER),
        "waiting": record({tier.value: COUNT for tier in Tier}),
    }
)

STORED_CHECKPOINT = record(
    {
        "id": TEXT,
        "name": {**TEXT, "description": "Given by a person; empty: it may be trimmed."},
        "at": nullable(TIME),
        "level": {
            "type": "string",
            "enum": ["device", "process", "files"],
            "description": "process: everything; device, files: that alone.",
        },
        "bytes": {**COUNT, "description": "What it would take unshared and uncompressed."},
        "stored_bytes": {**COUNT, "description": "What it takes in the store."},
        "sent_bytes": {**COUNT, "description": "What had to be sent for it."},
        "incarnation": COUNT,
        "reason": {**TEXT, "description": "Why its level is not higher."},
        "damaged": {**nullable(TEXT), "description": "What was found wrong with it."},
        "restorable": {
            "type": "boolean",
            "description": "Whether a session can come back from it.",
        },
    }
)

LOSS_REPORT = record(
    {
        "level": TEXT,
        "back": {**listed(TEXT), "description": "What came back."},
        "lost": {**listed(TEXT), "description": "What could not, each as a few words."},
        "rolled_back": {
            "type": "boolean",
            "description": "Whether what it did after the checkpoint is undone.",
        },
        "hashes_checked": COUNT,
        "checkpoint": TEXT,
        "at": nullable(TIME),
    }
)

PROGRESS = record(
    {
        "bytes_done": COUNT,
        "bytes_total": COUNT,
        "bytes_sent": {**COUNT, "description": "Of them, what the store did not have yet."},
        "rate": {"type": "number", "minimum": 0, "description": "Bytes per second."},
        "eta_s": {**nullable({"type": "number", "minimum": 0}), "description": "Seconds left."},
    }
)

COMPONENTS: dict[str, Schema] = {
    "StoredCheckpoint": STORED_CHECKPOINT,
    "LossReport": LOSS_REPORT,
    "Progress": PROGRESS,
    "CheckpointList": record({"checkpoints": listed(ref("StoredCheckpoint"))}),
    "Hibernated": record(
        {
            "suspended": {**listed(TEXT), "description": "Ids of those in the store."},
            "suspending": {**listed(TEXT), "description": "Still on their way."},
            "kept": {
                **listed(record({"session": TEXT, "reason": TEXT})),
                "description": "Those that go on as they are, and why.",
            },
        }
    ),
    "SuspendedNotebooks": record(
        {
            "notebooks": listed(
                record(
                    {
                        "session": ref("SessionDetails"),
                        "kernel_id": nullable(TEXT),
                        "connection": {
                            **nullable({"type": "object"}),
                            "description": "Jupyter connection information of its relay, for its "
                            "user alone; null when its node cannot tell.",
                        },
                    }
                )
            )
        }
    ),
    "SessionDetails": record(SESSION),
    "Session": _in_lists(),
    "SessionStatus": record({**SESSION, "others_waiting": listed(OTHER_WAITING)}),
    "CreatedSession": record(
        {
            **SESSION,
            "others_waiting": listed(OTHER_WAITING),
            "launch": record(
                {
                    "pid": nullable({"type": "integer"}),
                    "connection": nullable({"type": "object"}),
                    "env": {"type": "object", "additionalProperties": TEXT},
                }
            ),
        },
        "launch",
    ),
    "SessionPage": record({"sessions": listed(ref("Session")), "next": nullable(TEXT)}),
    "NewSession": NEW_SESSION,
    "Run": RUN,
    "Launch": LAUNCH,
    "Change": record(
        {
            "at": TIME,
            "process_state": PROCESS_STATE,
            "device_state": DEVICE_STATE,
            "state": STATE,
            "reason": TEXT,
            "rule": RULE,
        }
    ),
    "HistoryPage": record({"history": listed(ref("Change")), "next": nullable(TEXT)}),
    "Explanation": record({"sentence": TEXT, "facts": {"type": "object"}}),
    "Cluster": CLUSTER,
    "Device": DEVICE,
    "Health": record(
        {
            "status": {"type": "string", "enum": ["ok", "degraded"]},
            "nodes": COUNT,
            "detail": TEXT,
        }
    ),
    "Identity": record(
        {
            "uid": {"type": "integer"},
            "gid": {"type": "integer"},
            "mapped": {"type": "boolean"},
            "sentence": TEXT,
        }
    ),
    "Problem": PROBLEM,
}
