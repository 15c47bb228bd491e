"""Counts the optimizer steps of this process, where the node agent can see them.

A step is a call of `step` of any optimizer of torch that was carried out: one that a GradScaler
skips is none. Applied by `hook` after `torch.optim.optimizer` was imported; torch's own hook for
all optimizers is used, which its compiler leaves outside of its graphs. The number lies in the ring
file of the first device that the process uses (`wire.ring.STEPS_OFFSET`), in a page of its own that
no proxy looks at: a step costs a store to memory, and the agent reads it twice a second. A process
that uses no device is not counted.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import struct
from typing import Any

from singularity_proxy.wire.ring import STEPS_OFFSET

_WORD = struct.Struct("<Q")

_count = itertools.count(1)
_page: mmap.mmap | None = None


def apply(module: Any) -> None:
    """Called by `hook` after `module` (torch.optim.optimizer) was executed."""
    module.register_optimizer_step_post_hook(_stepped)


def show_in(path: str) -> None:
    """The process has got its ring file `path`; the first one shows its steps from now on. Where
    that is impossible (larger pages than the file has room for) they are not shown: a device is
    worth more than a counter."""
    global _page
    if _page is not None:
        return
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _page = mmap.mmap(fd, mmap.PAGESIZE, offset=STEPS_OFFSET)
        finally:
            os.close(fd)


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    count = next(_count)
    if _page is not None:
        _WORD.pack_into(_page, 0, count)


def _forget() -> None:
    """In a child made by fork: what it inherits is its parent's."""
    global _page
    _page = None


os.register_at_fork(after_in_child=_forget)
