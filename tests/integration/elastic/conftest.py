"""What tests of gangs have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent_gang import folder_of_all


@pytest.fixture
def out() -> Iterator[Path]:
    """A folder that the capsules of all nodes see, and their ranks can write to."""
    with folder_of_all() as folder:
        yield folder
