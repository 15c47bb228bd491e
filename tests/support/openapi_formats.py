"""What schemathesis sends besides what the API's description says: texts of the formats named
there, and no wish to follow a log (SCHEMATHESIS_HOOKS)."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import strategies as st

schemathesis.openapi.format("printable", st.text().filter(str.isprintable))
schemathesis.openapi.format("python-name", st.from_regex(r"[a-z_][a-z0-9_]{0,20}", fullmatch=True))


@schemathesis.hook
def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Follow no log: the name of a live session may be guessed, and its log does not end
    (test_log.py follows some). What is no wish to follow is sent as it is."""
    if query and str(query.get("follow")).lower() == "true":
        return {**query, "follow": "false"}
    return query
