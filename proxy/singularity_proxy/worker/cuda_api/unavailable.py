"""A session's process in which the device proxy could not be put behind "cuda".

The usual reason is a native module that is not built yet and cannot be (no compiler, no Python.h).
torch then stays what it is on the CPU; "cuda" answers with that one sentence instead of a driver's
error, or of a failed `import torch`.
"""

from __future__ import annotations

import warnings
from typing import Any


def apply(torch: Any, reason: str) -> None:
    """Called by `hook` after `torch` was executed. `reason` is the sentence for people.

    `torch.cuda.is_available()` is False and warns once, as a CUDA build does without a fitting
    driver; every use of a device raises RuntimeError.
    """
    text = f'"cuda" is not available in this session, the CPU is: {reason}'

    told = False

    def is_available() -> bool:
        nonlocal told
        if not told:  # torch asks as well, from many places: each of them would warn
            told = True
            warnings.warn(text, stacklevel=2)
        return False

    def _lazy_init() -> None:
        raise RuntimeError(text)

    torch.cuda.is_available = is_available
    torch.cuda.device_count = lambda: 0
    torch.cuda._lazy_init = _lazy_init
