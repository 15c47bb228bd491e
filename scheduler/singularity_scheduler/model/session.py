"""The fields of a session that are declared once: what somebody says of a new one, and what the
scheduler keeps of it and shows as it is.

Each is a field of a class, and what else there is to know of it stands in its metadata. Made of
that are the checks of requests, the ledger's columns, the session's document and its schema,
arguments of the client, options of `submit`, lines of `show`, and what JupyterLab reads.
`docs/explanation/change-it.md` adds one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .arguments import SCHEMAS, Form
from .fields import (
    COUNT,
    NULL,
    TEXT,
    Declared,
    DeclaredWish,
    SessionField,
    WishField,
    declare,
    list_fields,
)
from .words import Priority

MAX_LOCATIONS = 64
"""Most clusters and regions that one session names."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What somebody says; a request (`SessionSpec`) and the session itself have these."""

    kernel_id: str = field(
        default="",
        metadata=declare(
            DeclaredWish(
                asked={"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,128}$"},
                about="Jupyter's id of the kernel, so that a restarted server finds it.",
                of_people=False,
            )
        ),
    )
    every_s: float | None = field(
        default=None,
        metadata=declare(
            DeclaredWish(
                asked={"type": "number", "minimum": 0, "maximum": 1e9},
                about="Seconds between checkpoints made by themselves; 0: none; null: as the "
                "service is configured.",
                key="checkpoint_every_s",
                shown={"oneOf": [{"type": "number", "minimum": 0}, NULL]},
                shown_about="Seconds between checkpoints made by themselves, as it was asked for; "
                "0: none; null: as the service is configured.",
            )
        ),
    )
    every_steps: int | None = field(
        default=None,
        metadata=declare(
            DeclaredWish(
                asked={"type": "integer", "minimum": 0, "maximum": 1_000_000_000},
                about="The same by optimizer steps.",
                key="checkpoint_every_steps",
                grows=True,
                shown={"oneOf": [{"type": "integer", "minimum": 0}, NULL]},
                shown_about="The same by optimizer steps.",
            )
        ),
    )
    virtual_cluster: str = field(
        default="",
        metadata=declare(
            DeclaredWish(
                asked={"type": "string", "maxLength": 500},
                about="Whose quota its devices count for; an Azure resource id stands for its "
                "last part. null: nobody's.",
                shown={"oneOf": [TEXT, NULL]},
                shown_about="Whose quota its devices count for.",
                label="Virtual cluster",
                option="The virtual cluster whose quota its devices count for, by its name or its "
                "Azure resource id. Empty: none.",
            )
        ),
    )
    priority: Priority = field(
        default=Priority.MEDIUM,
        metadata=declare(
            DeclaredWish(
                asked=SCHEMAS[Form.PRIORITY],
                about="null: medium.",
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
        metadata=declare(
            DeclaredWish(
                asked={
                    "type": "array",
                    "items": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"},
                    "maxItems": MAX_LOCATIONS,
                    "uniqueItems": True,
                },
                about="Clusters and regions that it may be in, see `GET clusters`; null or none: "
                "anywhere.",
                shown={"type": "array", "items": TEXT},
                shown_about="Clusters and regions that it may be in; none: anywhere.",
            )
        ),
    )
    share_milli: int = field(
        default=1000,
        metadata=declare(
            DeclaredWish(
                asked={"type": "number", "minimum": 0.001, "maximum": 1},
                about="Part of the time of one device: below 1 it takes turns with others that "
                "share. null: 1.",
                key="device_share",
            )
        ),
    )
    """Thousandths of the time of its one device that it asks for; 1000: whole devices."""


@dataclass(frozen=True, kw_only=True)
class KeptFacts:
    """What the scheduler keeps of a session and shows as it is; the session has these fields."""

    epoch: int = field(default=0, metadata=declare(Declared(COUNT, grows=True)))
    """Lease epoch: +1 with every grant."""
    incarnation: int = field(
        default=1,
        metadata=declare(
            Declared(COUNT, "+1 each time it went on from an older state.", grows=True),
        ),
    )
    called: bool = field(
        default=False,
        metadata=declare(
            Declared(
                {"type": "boolean"},
                "Suspended, and it comes back as soon as a node has room.",
                key="called_back",
            )
        ),
    )
    source: str = field(
        default="",
        metadata=declare(
            Declared(
                {"oneOf": [TEXT, NULL]},
                "The session it began as a copy of.",
                key="forked_from",
                label="Forked from",
            )
        ),
    )
    attempt: int = field(
        default=1,
        metadata=declare(
            Declared(
                {"type": "integer", "minimum": 1},
                "Of its run, which may make `max_retries` more than one; what it went on from is "
                "in `loss`, null: it began anew.",
            )
        ),
    )
    exit_code: int | None = field(
        default=None,
        metadata=declare(Declared({"oneOf": [{"type": "integer"}, NULL]}, label="Exit code")),
    )


WISHES = tuple(WishField(*each) for each in list_fields(Wishes))
FACTS = tuple(SessionField(*each) for each in list_fields(KeptFacts))

FIELDS: tuple[SessionField, ...] = (*WISHES, *FACTS)
"""All that a session has of both."""

SHOWN = tuple(each for each in FIELDS if each.fact.shown is not None)
"""Those that are in its document as they are."""


def copy_wishes(of: Wishes) -> dict[str, Any]:
    """Return the wishes of a request or a session, for another one."""
    return {each.name: getattr(of, each.name) for each in WISHES}
