"""What somebody says of a new session and what then stays with it: one field each.

A field of `Wishes` is a field of the request, of the session, of its row in the ledger and of its
document. Made of it are the checks of requests, the ledger's column, the schemas of the API, the
arguments of the client, options of `submit`, lines of `show`, and what JupyterLab reads.
`docs/explanation/change-it.md` shows how one is added.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from .arguments import SCHEMAS, Form, Schema
from .words import Priority


@dataclass(frozen=True)
class WishFacts:
    """What there is to know of a field besides its type and its default."""

    asked: Schema
    """Its schema in requests, where null always stands for the default."""
    about: str
    """What it is, in requests."""
    key: str = ""
    """Its name in the API; "": that of the field."""
    shown: Schema | None = None
    """Its schema in the session's document; None: what is shown of it is made by hand."""
    shown_about: str = ""
    """What it is, in the document; "": it needs no words."""
    length: int = 255
    """Characters of its column in the ledger, if it is a text."""
    label: str = ""
    """Of its line in `jupyter singularity show`; "": none, or one that is made by hand."""
    option: str = ""
    """What the option of `submit` with its name is for; "": there is none, or it has its own."""
    of_people: bool = True
    """Whether people say it: on the command line, in notebooks' metadata."""


MAX_LOCATIONS = 64
"""Most clusters and regions that one session names."""

_TEXT: Schema = {"type": "string"}
_NULL: Schema = {"type": "null"}


def say(wish: WishFacts) -> dict[str, WishFacts]:
    """Return the metadata of a field."""
    return {"wish": wish}


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The fields; a session's request (`SessionSpec`) and the session itself have them."""

    kernel_id: str = field(
        default="",
        metadata=say(
            WishFacts(
                {"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,128}$"},
                "Jupyter's id of the kernel, so that a restarted server finds it.",
                of_people=False,
            )
        ),
    )
    every_s: float | None = field(
        default=None,
        metadata=say(
            WishFacts(
                {"type": "number", "minimum": 0, "maximum": 1e9},
                "Seconds between checkpoints made by themselves; 0: none; null: as the service is "
                "configured.",
                key="checkpoint_every_s",
                shown={"oneOf": [{"type": "number", "minimum": 0}, _NULL]},
                shown_about="Seconds between checkpoints made by themselves, as it was asked for; "
                "0: none; null: as the service is configured.",
            )
        ),
    )
    every_steps: int | None = field(
        default=None,
        metadata=say(
            WishFacts(
                {"type": "integer", "minimum": 0, "maximum": 1_000_000_000},
                "The same by optimizer steps.",
                key="checkpoint_every_steps",
                shown={"oneOf": [{"type": "integer", "minimum": 0}, _NULL]},
                shown_about="The same by optimizer steps.",
            )
        ),
    )
    virtual_cluster: str = field(
        default="",
        metadata=say(
            WishFacts(
                {"type": "string", "maxLength": 500},
                "Whose quota its devices count for; an Azure resource id stands for its last part. "
                "null: nobody's.",
                shown={"oneOf": [_TEXT, _NULL]},
                shown_about="Whose quota its devices count for.",
                label="Virtual cluster",
                option="The virtual cluster whose quota its devices count for, by its name or its "
                "Azure resource id. Empty: none.",
            )
        ),
    )
    priority: Priority = field(
        default=Priority.MEDIUM,
        metadata=say(
            WishFacts(
                SCHEMAS[Form.PRIORITY],
                "null: medium.",
                shown=SCHEMAS[Form.PRIORITY],
                shown_about="Orders sessions of one tier.",
                length=16,
                option='Place among the runs of its tier: "low", "medium" or "high". Empty: '
                "medium.",
            )
        ),
    )
    locations: tuple[str, ...] = field(
        default=(),
        metadata=say(
            WishFacts(
                {
                    "type": "array",
                    "items": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"},
                    "maxItems": MAX_LOCATIONS,
                    "uniqueItems": True,
                },
                "Clusters and regions that it may be in, see `GET clusters`; null or none: "
                "anywhere.",
                shown={"type": "array", "items": _TEXT},
                shown_about="Clusters and regions that it may be in; none: anywhere.",
            )
        ),
    )
    share_milli: int = field(
        default=1000,
        metadata=say(
            WishFacts(
                {"type": "number", "minimum": 0.001, "maximum": 1},
                "Part of the time of one device: below 1 it takes turns with others that share. "
                "null: 1.",
                key="device_share",
            )
        ),
    )
    """Thousandths of the time of its one device that it asks for; 1000: whole devices."""


@dataclass(frozen=True)
class WishField:
    """A field with what is known of it."""

    name: str
    key: str
    type: Any
    default: Any
    wish: WishFacts

    def show(self, value: Any) -> Any:
        """Return a value as the session's document has it."""
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, tuple):
            return list(value)
        return None if value == "" else value


def _list_entries() -> tuple[WishField, ...]:
    types = typing.get_type_hints(Wishes)
    return tuple(
        WishField(
            each.name,
            each.metadata["wish"].key or each.name,
            types[each.name],
            each.default,
            each.metadata["wish"],
        )
        for each in fields(Wishes)
    )


ENTRIES = _list_entries()
"""All of them, in the order of the class."""


def copy_wishes(of: Wishes) -> dict[str, Any]:
    """Return the fields of a request or a session, for another one."""
    return {each.name: getattr(of, each.name) for each in ENTRIES}
