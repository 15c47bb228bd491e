"""torch.distributed's stores in a session's process.

A `TCPStore` server on libuv, torch's own choice, opens an io_uring, of which no process image can
be taken, and libuv's `UV_USE_IO_URING=0` leaves it open. torch has a server without libuv, and
`USE_LIBUV=0` chooses it, but torch looks at that for `env://` and `tcp://` alone: `torchrun` makes
its stores itself. So here it counts for every store.
"""

from __future__ import annotations

import functools
import os
from typing import Any

_BEFORE_USE_LIBUV = 8
"""Parameters of `TCPStore` before `use_libuv`."""


def apply(c10d: Any) -> None:
    """`c10d`: `torch._C._distributed_c10d`, complete. Who says `use_libuv` to the store gets it,
    and so does who has set another `USE_LIBUV` than the session's."""
    init = c10d.TCPStore.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if os.environ.get("USE_LIBUV") == "0" and len(args) <= _BEFORE_USE_LIBUV:
            kwargs.setdefault("use_libuv", False)
        init(self, *args, **kwargs)

    c10d.TCPStore.__init__ = __init__
