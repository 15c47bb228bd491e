"""The published JSON Schema of job files, and what it says in sentences.

``job.v1.schema.json`` is the one table: validation, the reference page and the tests read it. Its
own words: ``x-use`` (see `Use`) and ``x-note`` (said about metadata that would change a run
elsewhere).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from .errors import BadJob, nearest, shown
from .reading import Document, Node

SCHEMA_FILE = Path(__file__).with_name("job.v1.schema.json")

AISC = ("singularity", "aisupercomputer")
"""What the block below `resources.properties` is called, in any case."""


class Use(str, Enum):
    """What becomes of a key."""

    HONOURED = "honoured"
    METADATA = "metadata"
    """Kept with the session; changes nothing."""
    REFUSED = "refused"


@dataclass(frozen=True)
class Row:
    """One key of the table. A part ``NAME`` of its path stands for any name."""

    path: tuple[str, ...]
    use: Use
    jobs: tuple[str, ...]
    """The types of jobs that have it."""
    meaning: str
    note: str
    example: Any


@cache
def schema() -> dict[str, Any]:
    """The published schema."""
    found: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return found


@cache
def rows() -> tuple[Row, ...]:
    """The table, in the order of the schema."""
    return tuple(_rows((), schema()))


def _rows(path: tuple[str, ...], part: Mapping[str, Any]) -> Iterator[Row]:
    if use := part.get("x-use"):
        note, example = part.get("x-note", ""), part["examples"][0]
        yield Row(path, Use(use), _jobs(path[0]), part["description"], note, example)
    for name, inside in part.get("properties", {}).items():
        yield from _rows((*path, name), inside)
    if isinstance(part.get("additionalProperties"), dict):
        yield from _rows((*path, "NAME"), part["additionalProperties"])


def _jobs(key: str) -> tuple[str, ...]:
    without = {"notebook": schema()["then"], "command": schema()["else"]}
    return tuple(job for job, part in without.items() if key not in part["properties"])


# -- spelling -----------------------------------------------------------------------------------


def spelled(document: Document) -> Document:
    """`document` with the keys below `resources.properties` as the schema spells them: the service
    takes `AISuperComputer`, `ScalePolicy` and `scale_policy` for the same as theirs."""
    inside = document.find("resources", "properties")
    if inside is None or not isinstance(inside.value, dict):
        return document
    part = schema()["properties"]["resources"]["properties"]["properties"]
    properties = _spelled(document, inside, part)
    resources = document.root.value["resources"]
    resources = replace(resources, value={**resources.value, "properties": properties})
    root = replace(document.root, value={**document.root.value, "resources": resources})
    return replace(document, root=root)


def _spelled(document: Document, node: Node, part: Mapping[str, Any]) -> Node:
    known = {_squeezed(key): key for key in part.get("properties", {})}
    known |= {name: "singularity" for name in AISC if "singularity" in known}
    found: dict[str, Node] = {}
    for key, value in node.value.items():
        name = known.get(_squeezed(key), key)
        if name in found:
            what = f"{shown(key)} says {name} again: once is enough"
            raise BadJob(what, document.name, value.line)
        inner = part.get("properties", {}).get(name)
        deeper = isinstance(inner, dict) and isinstance(value.value, dict)
        found[name] = _spelled(document, value, inner) if deeper else value
    return replace(node, value=found)


def _squeezed(key: str) -> str:
    return key.replace("_", "").lower()


# -- validation ---------------------------------------------------------------------------------


def validate(document: Document) -> None:
    """Raises `BadJob` for the first thing in the file that the schema does not allow."""
    errors = list(_validator().iter_errors(document.root.plain()))
    if errors:
        raise min((_told(document, e) for e in errors), key=lambda found: found[0])[1]


@cache
def _validator() -> Any:
    # Where it is installed, jsonschema builds a grammar of it for a second, for a format that
    # nothing here uses.
    slow = "rfc3987_syntax"
    hidden = slow not in sys.modules
    if hidden:
        sys.modules[slow] = None  # type: ignore[assignment]
    try:
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    finally:
        if hidden:
            del sys.modules[slow]
    return Draft202012Validator(schema())


def _told(document: Document, error: Any) -> tuple[tuple[int, int], BadJob]:
    """((weight, line), the refusal). What is missing has the greatest weight: often it is there,
    and misspelled."""
    what, path = _sentence(error, list(error.absolute_path), document.words)
    line = document.line(*path)
    return (int(error.validator == "required"), line), document.bad(what, *path)


def _sentence(
    error: Any, path: list[str | int], dotted: Callable[[list[str | int]], str]
) -> tuple[str, list[str | int]]:
    """What is wrong, and where."""
    kind, where = error.validator, dotted(path)
    if kind == "additionalProperties":
        known = [k for k, part in error.schema.get("properties", {}).items() if part]
        key = next(k for k in error.instance if k not in known)
        inside = f" in {where}" if path else ""
        return f"{shown(key)} is not known{inside}: {nearest(key, known)}", [*path, key]
    if kind == "required":
        missing = next(k for k in error.validator_value if k not in error.instance)
        return f"{dotted([*path, missing])} is missing{_why(missing)}", path
    if kind == "not":
        return f"{where} is refused: {_said(error.schema)}", path
    if "propertyNames" in error.absolute_schema_path:
        name = error.instance
        return f"{shown(name)} cannot be a name in {where}: {_said(error.schema)}", [*path, name]
    if kind == "enum":
        known = [value for value in error.validator_value if isinstance(value, str)]
        return f"{where} cannot be {shown(error.instance)}: {_choice(error.instance, known)}", path
    if kind == "const":
        return f"{where} cannot be {shown(error.instance)}: {_said(error.schema)}", path
    if kind == "type":
        return f"{where} must be {_kinds(error.validator_value)}, not {shown(error.instance)}", path
    return f"{where} is not what it must be: {_plain(error)}", path


def _said(part: Mapping[str, Any]) -> str:
    """A description as the end of a sentence."""
    text = str(part["description"]).rstrip(".")
    return text[0].lower() + text[1:]


def _choice(given: object, known: list[str]) -> str:
    lower = list(dict.fromkeys(word.lower() for word in known))
    near = nearest(given.lower(), lower) if isinstance(given, str) else ""
    return near if near.startswith("did") else f"pick {', '.join(lower)}"


def _why(missing: str) -> str:
    if missing == "command":
        return ": a job without a type is a command; a notebook has 'type: notebook'"
    return ""


_KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}


def _kinds(wanted: str | list[str]) -> str:
    words = [_KINDS[w] for w in ([wanted] if isinstance(wanted, str) else wanted)]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _plain(error: Any) -> str:
    limits = {
        "minimum": "at least {}",
        "maximum": "at most {}",
        "minLength": "it is empty",
        "maxLength": "at most {} characters",
        "minItems": "it is empty",
        "minProperties": "it is empty",
    }
    words = limits.get(str(error.validator), "it does not match {}")
    return words.format(error.validator_value)
