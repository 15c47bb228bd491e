"""Two network namespaces for a test of nodes on one machine: each with an address of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from singularity_scheduler.fleet import namespaces


@contextlib.contextmanager
def two_namespaces() -> Iterator[dict[str, str]]:
    """Two that reach each other: name -> address. Skips the test where that cannot be."""
    if reason := namespaces.why_not():
        pytest.skip(reason)
    tag = f"f{os.getpid() % 1000000}"
    try:
        names = namespaces.create(tag, ("node-1", "node-2")).values()
        yield {name: namespaces.address_of(name) for name in names}
    finally:
        namespaces.remove(tag)
