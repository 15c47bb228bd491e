"""The tests' own tools (`tests/support`), which run agents, kernels and stores for benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path


def see_support() -> None:
    """Make `import support` find them."""
    folder = str(Path(__file__).resolve().parent.parent / "tests")
    if folder not in sys.path:
        sys.path.insert(0, folder)
