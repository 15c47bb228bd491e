"""What the schemas of the API are made of: forms, and values from the tables of `core`."""

from __future__ import annotations

from typing import Any

from singularity_scheduler.core.placement import geography
from singularity_scheduler.core.values.requested import MAX_NAME, Kind, Priority, Tier
from singularity_scheduler.core.values.rules import RULES
from singularity_scheduler.core.values.states import WORDS, DeviceState, ProcessState
from singularity_scheduler.text.reasons import CODES

Schema = dict[str, Any]

SESSION_ID = r"^[A-Za-z0-9_-]{1,64}$"
PLACE = rf"^{geography.NAME.pattern}$"
"""A cluster or region."""
MAX_PATH = 4096


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
SECONDS: Schema = {"type": "number", "minimum": 0}
FRACTION: Schema = {"type": "number", "minimum": 0, "maximum": 1}
TIME: Schema = {"type": "string", "format": "date-time"}
STATE: Schema = {"type": "string", "enum": list(WORDS)}
PROCESS_STATE: Schema = {"type": "string", "enum": [s.value for s in ProcessState]}
DEVICE_STATE: Schema = {"type": "string", "enum": [s.value for s in DeviceState]}
TIER: Schema = {"type": "string", "enum": [t.value for t in Tier]}
PRIORITY: Schema = {"type": "string", "enum": [p.value for p in Priority]}
KIND: Schema = {"type": "string", "enum": [k.value for k in Kind]}
RULE: Schema = {"type": "string", "enum": sorted(RULES)}
REASON_FACTS: dict[str, Schema] = {
    "reason_code": {
        "type": "string",
        "enum": sorted(CODES),
        "description": "The reason as data; see the page of reasons.",
    },
    "reason_args": {
        "type": "object",
        "description": "The arguments of that code. A reason within a reason is an object with "
        "`code` and `args`.",
    },
}
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
