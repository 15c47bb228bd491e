"""Reading requests: cursors, numbers, keys; and what the table of operations promises."""

from __future__ import annotations

import base64
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from singularity_proxy.errors import BadRequest, NoSpace
from singularity_scheduler.core.values.states import WORDS
from singularity_scheduler.service.api import checks
from singularity_scheduler.service.api.problems import outcome_of
from singularity_scheduler.service.operations.handlers import TABLE
from singularity_scheduler.service.operations.table import Operation, Who
from singularity_scheduler.service.schemas import common as schemas
from singularity_scheduler.service.schemas.openapi import document

BY_NAME: dict[str, Operation] = {operation.name: operation for operation in TABLE}


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(), st.text())
def test_a_cursor_comes_back_as_it_was(at: float, session: str, scope: str) -> None:
    cursor = checks.make_cursor((at, session), scope)
    assert cursor.isascii()
    assert checks.read_cursor(cursor, scope, (float, str)) == [at, session]
    with pytest.raises(BadRequest):
        checks.read_cursor(cursor, scope + "x", (float, str))


@given(st.text(max_size=60))
def test_anything_else_is_refused_as_a_cursor(text: str) -> None:
    with pytest.raises(BadRequest, match="begin without it"):
        checks.read_cursor(text, "list", (float, str))


@pytest.mark.parametrize(
    ("position", "kinds"),
    [
        ('1e999,"a"', (float, str)),
        ('NaN,"a"', (float, str)),
        ('-Infinity,"a"', (float, str)),
        ('1.0,"\\ud800"', (float, str)),
        (str(1 << 63), (int,)),
        (str(-(1 << 63) - 1), (int,)),
        ("true", (int,)),
    ],
)
def test_a_forged_cursor_is_refused(position: str, kinds: tuple[type, ...]) -> None:
    scope = checks._short("list")
    cursor = base64.urlsafe_b64encode(f'["{scope}",{position}]'.encode()).decode().rstrip("=")
    with pytest.raises(BadRequest, match="begin without it"):
        checks.read_cursor(cursor, "list", kinds)


def test_the_largest_whole_numbers_of_a_cursor() -> None:
    for number in (-(1 << 63), (1 << 63) - 1):
        assert checks.read_cursor(checks.make_cursor((number,), "x"), "x", (int,)) == [number]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" + "0" * 400 + ".0"])
def test_numbers_that_no_float_holds_are_refused(number: str) -> None:
    body = f'{{"run": {{"parameters": {{"lr": {number}}}}}}}'.encode()
    with pytest.raises(BadRequest, match="is too large to be stored") as refused:
        checks.read_json(body)
    assert number[:30] in refused.value.message
    assert len(refused.value.message) < 120


def test_a_log_has_a_limit_that_holds_every_character() -> None:
    operation = BY_NAME["stream_log"]
    assert checks.read_query(operation, {"limit": [b"4"]})["limit"] == len("\U0001f600".encode())
    with pytest.raises(BadRequest, match="limit must be a whole number from 4"):
        checks.read_query(operation, {"limit": [b"3"]})


def test_what_becomes_of_a_request() -> None:
    assert outcome_of(201, None) == "done"
    assert outcome_of(405, None) == outcome_of(507, NoSpace("full")) == "refused"
    assert outcome_of(500, None) == "failed"


@given(st.text(max_size=20))
def test_a_number_in_an_address_is_read_or_refused(text: str) -> None:
    given_ = {"grace_s": [text.encode("utf-8", "replace")]}
    with contextlib.suppress(BadRequest):
        assert 0 <= checks.read_query(BY_NAME["end_session"], given_)["grace_s"] <= 600


@pytest.mark.parametrize("text", ["", "-1", "600.1", "nan", "inf", "1e4", "0x1", " 5", "5s", "٣"])
def test_numbers_that_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="grace_s must be a number of seconds from 0 to 600"):
        checks.read_query(BY_NAME["end_session"], {"grace_s": [text.encode()]})


def test_fingerprints_tell_requests_apart_but_not_the_order_of_keys() -> None:
    one = checks.fingerprint("POST", "/a", {"x": 1, "y": 2})
    assert one == checks.fingerprint("POST", "/a", {"y": 2, "x": 1})
    others = {
        checks.fingerprint("POST", "/b", {"x": 1, "y": 2}),
        checks.fingerprint("POST", "/a", {"x": 1, "y": 3}),
        checks.fingerprint("POST", "/a", {"x": "1", "y": 2}),
    }
    assert len(others) == 3
    assert one not in others
    assert len(one) == 64


def test_the_description_names_what_exists_and_who_may_call_it() -> None:
    found = document()
    text = json.dumps(found)
    for reference in set(json.loads(f"[{', '.join(_references(text))}]")):
        assert reference.removeprefix("#/components/schemas/") in schemas.COMPONENTS
    assert found["components"]["schemas"]["Session"]["properties"]["state"]["enum"] == list(WORDS)
    names = [o["operationId"] for path in found["paths"].values() for o in path.values()]
    assert len(names) == len(set(names)) == len(TABLE)
    for operation in TABLE:
        shown = found["paths"][f"/{operation.route}"][operation.method.lower()]
        assert bool(shown["security"]) is (operation.who is not Who.ANYBODY)
        assert {"400", "413", "503"} <= set(shown["responses"])
        if shown["security"]:
            assert {"401", "403"} <= set(shown["responses"])
        keyed = any(p["name"] == "Idempotency-Key" for p in shown["parameters"])
        assert keyed is (operation.method == "POST")


def _references(text: str) -> list[str]:
    return [part.split('"')[0].join('""') for part in text.split('"$ref": "')[1:]]


def test_every_write_about_sessions_has_a_verb() -> None:
    for operation in TABLE:
        writes = operation.method in ("POST", "DELETE")
        changes = writes and operation.path.startswith(("sessions", "groups"))
        assert bool(operation.verb) is changes, operation.name
