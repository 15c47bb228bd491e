"""Texts of the formats that the API's description names, for schemathesis (SCHEMATHESIS_HOOKS)."""

from __future__ import annotations

import schemathesis
from hypothesis import strategies as st

schemathesis.openapi.format("printable", st.text().filter(str.isprintable))
schemathesis.openapi.format("python-name", st.from_regex(r"[a-z_][a-z0-9_]{0,20}", fullmatch=True))
