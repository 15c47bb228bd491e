"""The native module, loaded once; importing this builds it if need be."""

from __future__ import annotations

from typing import Any

from singularity_proxy import build

native: Any = build.load()
