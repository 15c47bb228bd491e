"""What verbs take: each argument with its JSON Schema and its type in Python."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .words import Priority, Tier

Schema = dict[str, Any]

MAX_NAME = 200
"""Characters of a session's name."""

MAX_CHECKPOINT_NAME = 200
"""Characters of a checkpoint's name."""

MAX_DEVICES = 4096
"""The most virtual devices that the schema of a new session allows; a cluster allows fewer."""


class Form(Enum):
    """How the value of an argument is read, in words, by the service and by the command line."""

    NAME = "the name of a session"
    LABEL = "the name of a new checkpoint"
    STORED = "the id or name of a checkpoint"
    LEVEL = "device or process"
    SECONDS = "a length of time"
    COUNT = "a number of devices"
    TIER = "a tier"
    PRIORITY = "a priority"
    NODE = "the name of a node"
    CLUSTER = "the name of a cluster"
    PLACES = "devices, by their ids or numbers"
    FLAG = "yes or no"


_LABEL: Schema = {"type": "string", "maxLength": MAX_CHECKPOINT_NAME, "format": "printable"}
_PLACE: Schema = {"type": "string", "maxLength": 255, "format": "printable"}

SCHEMAS: dict[Form, Schema] = {
    Form.NAME: {
        "type": "string",
        "maxLength": MAX_NAME,
        "format": "printable",
        "description": "Printable text.",
    },
    Form.LABEL: _LABEL,
    Form.STORED: _LABEL,
    Form.LEVEL: {"type": "string", "enum": ["device", "process"]},
    Form.SECONDS: {"type": "number", "minimum": 0},
    Form.COUNT: {"type": "integer", "minimum": 1, "maximum": MAX_DEVICES},
    Form.TIER: {"type": "string", "enum": [tier.value for tier in Tier]},
    Form.PRIORITY: {"type": "string", "enum": [priority.value for priority in Priority]},
    Form.NODE: _PLACE,
    Form.CLUSTER: _PLACE,
    Form.PLACES: {
        "oneOf": [
            {"type": "null"},
            {"type": "string"},
            {"type": "integer"},
            {"type": "array", "items": {"type": ["string", "integer"]}},
        ],
    },
    Form.FLAG: {"type": "boolean"},
}

PYTHON: dict[Form, str] = {
    Form.SECONDS: "float",
    Form.COUNT: "int",
    Form.PLACES: "str | int | list[str]",
    Form.FLAG: "bool",
}
"""Types in the client; the others are `str`."""


@dataclass(frozen=True)
class Argument:
    """A key of a verb's body."""

    name: str
    form: Form
    description: str = ""
    needed: str = ""
    """What a person has to give, for the sentence that asks for it; "": it may be left out."""
    more: Schema = dataclasses.field(default_factory=dict)
    """What its schema has besides that of its form."""
    field: str = ""
    """Its name in the event of the policy; "": the same."""
    on_page: bool = True
    """Whether a page in JupyterLab may say it."""

    @property
    def optional(self) -> bool:
        return not self.needed

    @property
    def schema(self) -> Schema:
        schema = {**SCHEMAS[self.form], **self.more}
        if self.optional and self.form not in (Form.FLAG, Form.PLACES):
            schema = {"oneOf": [schema, {"type": "null"}]}
        return {**schema, "description": self.description} if self.description else schema

    @property
    def python(self) -> str:
        """Its type in the client, for one that may be left out without the None."""
        return PYTHON.get(self.form, "str")
