"""What is declared of a field of a session, and how fields are found."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from .arguments import Schema

TEXT: Schema = {"type": "string"}
NULL: Schema = {"type": "null"}
COUNT: Schema = {"type": "integer", "minimum": 0}


@dataclass(frozen=True)
class Declared:
    """What there is to know of a field besides its type and its default."""

    shown: Schema | None
    """Its schema in the session's document; None: what is shown of it is made by hand."""
    shown_about: str = ""
    """What it is, in the document; "": it needs no words."""
    key: str = ""
    """Its name in the API; "": that of the field."""
    length: int = 255
    """Characters of its column in the ledger, if it is a text."""
    grows: bool = False
    """Whether its column holds numbers of any size, if it is a whole number."""
    label: str = ""
    """Of its line in `jupyter singularity show`; "": none, or one that is made by hand."""


@dataclass(frozen=True, kw_only=True)
class DeclaredWish(Declared):
    """The same of a field that a new session is asked for with."""

    shown: Schema | None = None
    asked: Schema
    """Its schema in requests, where null always stands for the default."""
    about: str
    """What it is, in requests."""
    option: str = ""
    """What the option of `submit` with its name is for; "": there is none, or it has its own."""
    of_people: bool = True
    """Whether people say it: on the command line, in notebooks' metadata."""


@dataclass(frozen=True)
class SessionField:
    """A field with what is declared of it."""

    name: str
    key: str
    type: Any
    default: Any
    fact: Declared

    @property
    def schema(self) -> Schema:
        """Its schema in the session's document."""
        about = self.fact.shown_about
        return {**(self.fact.shown or {}), **({"description": about} if about else {})}

    @property
    def shows(self) -> Callable[[Any], Any] | None:
        """What makes a value of the document of one of the session; None: it is the same."""
        if isinstance(self.default, Enum):
            return attrgetter("value")
        if isinstance(self.default, tuple):
            return list
        return none_if_empty if self.default == "" and self.fact.shown != TEXT else None


def none_if_empty(text: str) -> str | None:
    """Return a text, or None for the empty one."""
    return text or None


@dataclass(frozen=True)
class WishField(SessionField):
    """A field that a new session is asked for with."""

    fact: DeclaredWish


def declare(fact: Declared) -> dict[str, Declared]:
    """Return the metadata of a field."""
    return {"fact": fact}


def list_fields(declared: type) -> list[tuple[str, str, Any, Any, Any]]:
    """Return name, key, type, default and declaration of the fields of a class."""
    types = typing.get_type_hints(declared)
    return [
        (
            each.name,
            each.metadata["fact"].key or each.name,
            types[each.name],
            each.default,
            each.metadata["fact"],
        )
        for each in dataclasses.fields(declared)
    ]
