"""Structured logs: one JSON object per line, with the session and the request it is about.

    with bind(session=session):      # everything logged below says so, tasks made here too
        log.info("parked")

Used by the service and the node agent.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import logging
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any

FIELDS = ("session", "node", "request", "user")
"""What can be bound, besides what stands in every line: time, level, logger, message."""

TEXT_FORMAT = "[%(levelname)1.1s %(asctime)s.%(msecs).03d singularity] %(message)s"

_bound: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar(
    "singularity_log_fields",
    default=MappingProxyType({}),
)


def bind_now(**fields: str | None) -> contextvars.Token[Mapping[str, str]]:
    """Add these of `FIELDS` to every line of this task, and of those it starts, from now on."""
    _known(fields)
    return _bound.set({**_bound.get(), **{k: v for k, v in fields.items() if v is not None}})


@contextlib.contextmanager
def bind(**fields: str | None) -> Iterator[None]:
    """`bind_now` for a ``with`` block."""
    token = bind_now(**fields)
    try:
        yield
    finally:
        _bound.reset(token)


def bound() -> Mapping[str, str]:
    """What is bound here."""
    return _bound.get()


def _known(fields: Mapping[str, object]) -> None:
    if unknown := fields.keys() - set(FIELDS):
        raise TypeError(f"a line of the log has no field {', '.join(sorted(unknown))}")


class JsonFormatter(logging.Formatter):
    """One line per record: time (ISO 8601, UTC), level, logger, message, then what is bound, the
    record's own ``extra={"facts": {...}}``, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **bound(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """The same for people: the message, then what is bound as ``(session=..., user=...)``."""

    def __init__(self, fmt: str = TEXT_FORMAT, datefmt: str | None = "%Y-%m-%d %H:%M:%S") -> None:
        super().__init__(fmt, datefmt)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        fields = {**bound(), **getattr(record, "facts", {})}
        if not fields:
            return text
        first, *rest = text.split("\n")
        return "\n".join([f"{first} ({', '.join(f'{k}={v}' for k, v in fields.items())})", *rest])


def formatter(style: str) -> logging.Formatter:
    """The formatter called "json" or "text"."""
    return JsonFormatter() if style == "json" else TextFormatter()
