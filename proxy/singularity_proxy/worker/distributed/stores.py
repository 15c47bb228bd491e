"""torch.distributed's stores in a session's process.

A `TCPStore` server on libuv, torch's own choice, opens an io_uring, of which no process image can
be taken, and libuv's `UV_USE_IO_URING=0` leaves it open. torch has a server without libuv, and
`USE_LIBUV=0` chooses it, but torch looks at that for `env://` and `tcp://` alone: `torchrun` makes
its stores itself. So here it counts for every store.

And a server takes requests of its own user alone (see `store_guard`), whoever makes it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from . import store_guard

OPEN = "SINGULARITY_OPEN_STORES"
"""Variable of a session: "1" for stores that everybody may use who reaches their port, for ranks on
machines that are no nodes of the platform."""

_PARAMETERS = (
    *("host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers"),
    *("multi_tenant", "master_listen_fd", "use_libuv"),
)


def apply(c10d: Any) -> None:
    """`c10d`: `torch._C._distributed_c10d`, complete. Who says `use_libuv` to the store gets it,
    and so does who has set another `USE_LIBUV` than the session's."""
    init = c10d.TCPStore.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) <= len(_PARAMETERS):
            kwargs |= dict(zip(_PARAMETERS, args, strict=False))
            args = ()
        if os.environ.get("USE_LIBUV") == "0":
            kwargs.setdefault("use_libuv", False)
        if not kwargs.get("is_master") or args or os.environ.get(OPEN) == "1":
            init(self, *args, **kwargs)
        else:
            _serve(functools.partial(init, self), kwargs)

    c10d.TCPStore.__init__ = __init__


def _serve(init: Callable[..., None], options: dict[str, Any]) -> None:
    """Make a store that serves."""
    given = options.get("master_listen_fd")
    if given is not None:  # the caller's own socket, of a port that it has told nobody yet
        with socket.socket(fileno=os.dup(given)) as listener:
            try:
                store_guard.attach_filter(listener)
                store_guard.watch(listener)
            except store_guard.Unguarded as why:
                _say_open(why)
        init(**options)
        return
    try:
        listener = store_guard.listen(int(options.get("port") or 0))
    except store_guard.Unguarded as why:
        _say_open(why)
        init(**options)
        return
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        init(**options)  # by a store of this process, which is shared, or torch says so
        return
    store_guard.watch(listener)
    port, number = listener.getsockname()[1], os.fstat(listener.fileno()).st_ino
    descriptor = listener.detach()
    try:
        init(**{**options, "port": port, "master_listen_fd": descriptor})
    except BaseException:
        with contextlib.suppress(OSError):  # the store has closed it where it got so far
            if os.fstat(descriptor).st_ino == number:
                os.close(descriptor)
        raise


def _say_open(why: Exception) -> None:
    print(
        f"singularity: other users of this machine can reach the store at which ranks meet: {why}",
        file=sys.stderr,
    )
