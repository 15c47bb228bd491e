"""What every attack gets: a place for what it measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`measured("grew by 3 MiB")`: the result for the report."""
    return lambda text: record_property("measured", text)
