"""JSON Schemas of what is asked of a new session: a notebook to run, or a process."""

from __future__ import annotations

from singularity_scheduler.core.values.requested import Kind
from singularity_scheduler.model.arguments import MAX_DEVICES
from singularity_scheduler.model.session import WISHES
from singularity_scheduler.requests.gang_spec import MAX_NODES
from singularity_scheduler.requests.run_spec import MAX_RETRIES, MAX_TIMEOUT_S

from .vocabulary import (
    KIND,
    NAME,
    PATH,
    TEXT,
    TIER,
    listed,
    nullable,
    ref,
)

RUN = {
    "type": "object",
    "description": "A notebook to run by papermill, or a command, under the session's own devices.",
    "properties": {
        "notebook": nullable(PATH),
        "command": {
            **nullable({"type": "string", "pattern": r"^[^\x00]*\S[^\x00]*$"}),
            "description": "For bash, in place of a notebook; it needs `folder`.",
        },
        "ranked": {
            **nullable({"type": "boolean"}),
            "description": "The command is started once for each virtual device, with RANK, "
            "WORLD_SIZE and their like.",
        },
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
        "timeout_s": {
            **nullable({"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_S}),
            "description": "Most seconds from its start to its end, without the time it is in the "
            "store; null: no limit.",
        },
        "max_retries": {
            **nullable({"type": "integer", "minimum": 0, "maximum": MAX_RETRIES}),
            "description": "How often it goes on by itself, from its last checkpoint or else from "
            "its beginning, when a process of it was killed or its node is gone; null: 0.",
        },
        "metadata": {
            **nullable({"type": "object"}),
            "description": "What a job file says that changes nothing: tags, experiment, ...; at "
            "most 64 KiB.",
        },
    },
    "oneOf": [
        {
            "required": ["notebook"],
            "properties": {
                "notebook": PATH,
                "command": {"type": "null"},
                "ranked": {"enum": [False, None]},
            },
        },
        {
            "required": ["command", "folder"],
            "properties": {
                "notebook": {"type": "null"},
                "output": {"type": "null"},
                "parameters": {**nullable({"type": "object", "maxProperties": 0})},
                "kernel": {"type": "null"},
                "command": {"type": "string"},
                "folder": PATH,
            },
        },
    ],
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

SCALE_POLICY = {
    "type": "object",
    "description": "On how many physical devices it may run its virtual ones: it is started on "
    "fewer when no more are free, gives some up before others have to be paused, and gets them "
    "back when they are free. The most that is named here is also the number of virtual devices, "
    "if `devices` is null.",
    "properties": {
        "auto_scale_instance_type_count_set": {
            **nullable(
                {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 1, "maximum": MAX_DEVICES},
                    "minItems": 1,
                    "uniqueItems": True,
                }
            ),
            "description": "The numbers that it may have, rising; not together with the next two.",
        },
        "min_instance_type_count": {
            **nullable({"type": "integer", "minimum": 1, "maximum": MAX_DEVICES}),
            "description": "null: 1.",
        },
        "max_instance_type_count": {
            **nullable({"type": "integer", "minimum": 1, "maximum": MAX_DEVICES}),
            "description": "null: as many as it has virtual ones.",
        },
        "auto_scale_interval_in_sec": {
            **nullable({"type": "number", "minimum": 0, "maximum": 1e9}),
            "description": "Least time between two changes that the scheduler makes by itself; "
            "null: the parameter `scale_interval_s`.",
        },
    },
    "additionalProperties": False,
}

NEW_SESSION = {
    "type": "object",
    "description": "A notebook or a command to run (`run`), or a process to start or to join "
    "(`launch`).",
    "properties": {
        "kind": KIND,
        "name": nullable(NAME),
        "tier": nullable(TIER),
        "devices": {
            **nullable({"type": "integer", "minimum": 1, "maximum": MAX_DEVICES}),
            "description": "Virtual devices, at most what one node has; with `nodes` those of all "
            "of them together.",
        },
        "nodes": {
            **nullable({"type": "integer", "minimum": 1, "maximum": MAX_NODES}),
            "description": "On so many nodes, of one cluster, the command is started: a session on "
            "each, with its part of the devices. They start, have devices and end together; the "
            "answer is the first of them. null: 1.",
        },
        "elastic": {
            **nullable({"type": "boolean"}),
            "description": "true: it may run on 1 to all of its devices, as `scale_policy` says "
            "more exactly; false or null: only on all of them.",
        },
        "scale_policy": {**nullable(SCALE_POLICY), "description": SCALE_POLICY["description"]},
        "run": nullable(ref("Run")),
        "launch": nullable(ref("Launch")),
        **{
            each.key: {**nullable(each.fact.asked), "description": each.fact.about}
            for each in WISHES
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
