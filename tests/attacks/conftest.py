"""What every attack gets: a place for what it measured, and a bound for what it may take itself."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator

import pytest

MOST_BYTES = 4 << 30
"""Memory of each process of an attack. Some run the service in the process of the test: where a
bound of it is broken, the test fails instead of taking the machine's memory."""


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`measured("grew by 3 MiB")`: the result for the report."""
    return lambda text: record_property("measured", text)


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Refuse memory beyond `MOST_BYTES` to this process and those that it starts meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = MOST_BYTES if hard == resource.RLIM_INFINITY else min(MOST_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
