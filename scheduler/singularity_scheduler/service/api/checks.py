"""Reads what a request brings, against the table: each refusal is one sentence."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import (  # type: ignore[import-untyped]
    ValidationError,
    best_match,
)
from singularity_proxy.errors import BadRequest, NotFound
from singularity_proxy.wire.limits import is_deeper

from singularity_scheduler.requests.fields import refuse_unknown
from singularity_scheduler.service.operations.table import Operation, Parameter
from singularity_scheduler.service.schemas import common as schemas
from singularity_scheduler.service.schemas.vocabulary import Schema

Json = dict[str, Any]

MAX_KEY = 200
"""Characters of an Idempotency-Key."""

MAX_DEPTH = 64
"""Lists and objects in each other, in a body."""

MAX_WHOLE = 1 << 63
"""Whole numbers in cursors are smaller: the database takes no others."""

_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", re.ASCII)


# -- bodies ---------------------------------------------------------------------------------


def read_json(raw: bytes) -> Json:
    """The JSON object of a request; an empty body is an empty object."""
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw, parse_constant=_no_constant, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # half characters cannot be stored
    except (ValueError, RecursionError):
        raise BadRequest("the request's body is not JSON") from None
    if not isinstance(value, dict):
        raise BadRequest("the request's body must be a JSON object")
    if is_deeper(value, MAX_DEPTH):
        raise BadRequest(
            f"the request's body has more than {MAX_DEPTH} lists or objects in each other"
        )
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity are not JSON


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise BadRequest(f"the number {shown} in the request's body is too large to be stored")
    return value


def check_body(operation: Operation, body: Json, explain: Any) -> None:
    """`BadRequest` for a body that does not fit the operation's schema. `explain` may raise a
    better sentence first."""
    schema = schemas.COMPONENTS[operation.body] if operation.body else {"properties": {}}
    refuse_unknown(body, schema["properties"])
    if operation.body is None:
        return
    errors = list(_validator(operation.body).iter_errors(body))
    if errors:
        explain(body)
        raise BadRequest(_told(best_match(errors), body))


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(_whole(schemas.COMPONENTS[name]))


def _whole(schema: Any) -> Any:
    """`schema` with its references filled in: to follow them anew for each request takes time."""
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            return _whole(schemas.COMPONENTS[str(schema["$ref"]).rpartition("/")[2]])
        return {name: _whole(part) for name, part in schema.items()}
    return [_whole(part) for part in schema] if isinstance(schema, list) else schema


def _told(error: ValidationError | None, body: Json) -> str:
    if error is None:
        return "the request's body does not fit what this operation takes: see openapi.json"
    where = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        refuse_unknown(error.instance, error.schema.get("properties", {}), where)
    if error.validator == "required":
        missing = [k for k in error.validator_value if k not in error.instance]
        return f"{'.'.join([*where.split('.'), missing[0]]).lstrip('.')} is missing"
    words = error.message if len(error.message) <= 200 else f"{error.message[:197]}..."
    return f"{where or 'the body'} is not what it must be: {words}"


def fingerprint(method: str, path: str, body: Json) -> str:
    """What makes two requests the same: used with their idempotency key."""
    canonical = json.dumps([method, path, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def read_key(headers: Mapping[str, str]) -> str | None:
    """The Idempotency-Key header."""
    key = headers.get("Idempotency-Key")
    if key is not None and not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise BadRequest(f"an Idempotency-Key has 1 to {MAX_KEY} characters, all printable ASCII")
    return key


# -- addresses ------------------------------------------------------------------------------


def read_path(operation: Operation, found: Mapping[str, str]) -> dict[str, str]:
    """The values in the path; what cannot be one is not there."""
    for parameter in operation.path_parameters:
        value = found[parameter.name]
        if not Draft202012Validator(parameter.schema).is_valid(value):
            shown = value if len(value) <= 40 and value.isprintable() else f"{value[:37]!r}..."
            raise NotFound(f"there is no {parameter.name} {shown}")
    return dict(found)


def read_query(operation: Operation, arguments: Mapping[str, Sequence[bytes]]) -> Json:
    """The values after the question mark, with their defaults."""
    known = {p.name: p for p in operation.query if p.where == "query"}
    refuse_unknown(dict(arguments), known)
    values: Json = {name: p.default for name, p in known.items()}
    for name, given in arguments.items():
        if len(given) != 1:
            raise BadRequest(f"{name} came {len(given)} times, it must come once")
        try:
            text = given[0].decode()
        except UnicodeDecodeError:
            raise BadRequest(f"{name} is not UTF-8 text") from None
        values[name] = _value(known[name], text)
    return values


def _value(parameter: Parameter, text: str) -> Any:
    schema, kind = parameter.schema, parameter.schema["type"]
    value: Any = text
    if kind == "boolean":
        if text not in ("true", "false"):
            raise BadRequest(f"{parameter.name} must be true or false")
        return text == "true"
    if kind == "integer":
        value = int(text) if _WHOLE.fullmatch(text) else None
    elif kind == "number":
        value = float(text) if _NUMBER.fullmatch(text) else None
    if value is None or not Draft202012Validator(schema).is_valid(value):
        raise BadRequest(f"{parameter.name} must be {_wanted(schema)}", **{parameter.name: text})
    return value


def _wanted(schema: Schema) -> str:
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema["type"] == "string":
        return f"text of at most {schema.get('maxLength', 255)} characters"
    noun = "a whole number" if schema["type"] == "integer" else "a number"
    unit = f" of {schema['x-unit']}" if "x-unit" in schema else ""
    if "maximum" not in schema:
        return f"{noun}{unit}, at least {schema['minimum']}"
    return f"{noun}{unit} from {schema['minimum']} to {schema['maximum']}"


# -- pages ----------------------------------------------------------------------------------


def make_cursor(position: Sequence[float | int | str], scope: str) -> str:
    """The opaque text for a position in a list; `scope` says which list (its filters)."""
    text = json.dumps([_short(scope), *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, scope: str, kinds: tuple[type, ...]) -> list[Any] | None:
    """The position in a cursor of `make_cursor` with the same scope."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        where, *position = list[Any](
            json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        )
    except (ValueError, TypeError, RecursionError):
        where, position = None, list[Any]()
    right = [k for k, v in zip(kinds, position, strict=False) if type(v) is k and _storable(v)]
    if where != _short(scope) or len(right) != len(kinds) or len(position) != len(kinds):
        raise BadRequest(
            "cursor is not one that this list gave for these filters: begin without it"
        )
    return position


def _storable(value: Any) -> bool:
    """Whether the database can be asked for it: a cursor may be forged."""
    if isinstance(value, str):
        return not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, int):
        return -MAX_WHOLE <= value < MAX_WHOLE
    return math.isfinite(value)


def _short(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:8]
