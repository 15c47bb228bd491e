"""Structured logs: what stands in a line, what is inherited, what a mistake is."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from singularity_scheduler import logs


def record(message: str, *args: Any, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("singularity.x", logging.WARNING, "f.py", 1, message, args, None)
    made.__dict__ |= more
    return made


def line(made: logging.LogRecord) -> dict[str, Any]:
    text = logs.JsonFormatter().format(made)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_says_when_where_what_and_about_which_session() -> None:
    with logs.bind(session="s1", node=None), logs.bind(user="ada"):
        found = line(record("it %s\nagain", "failed", facts={"ms": 1.5}))
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "warning",
        "logger": "singularity.x",
        "message": "it failed\nagain",
        "session": "s1",
        "user": "ada",
        "ms": 1.5,
    }
    assert "session" not in line(record("later"))


def test_an_error_brings_its_traceback() -> None:
    try:
        raise KeyError("gone")
    except KeyError as error:
        found = line(record("oh", exc_info=(type(error), error, error.__traceback__)))
    assert found["error"] == "KeyError"
    assert 'raise KeyError("gone")' in found["traceback"]


def test_for_people() -> None:
    formatter = logs.formatter("text")
    assert formatter.format(record("parked")).endswith("singularity] parked")
    with logs.bind(session="s1"):
        assert formatter.format(record("parked")).endswith("parked (session=s1)")


@pytest.mark.asyncio
async def test_tasks_inherit_and_do_not_leak() -> None:
    async def inner() -> dict[str, Any]:
        logs.bind_now(user="inner")
        await asyncio.sleep(0)
        return line(record("x"))

    with logs.bind(session="s1"):
        task = asyncio.create_task(inner())
        other = asyncio.create_task(inner())
    found = await asyncio.gather(task, other)
    assert [(x["session"], x["user"]) for x in found] == [("s1", "inner")] * 2
    assert not logs.bound()


def test_an_unknown_field_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="no field colour"), logs.bind(colour="x"):
        pass
