"""Device tensors on their way to other processes: refused where the program sends them.

A multiprocessing queue pickles in a thread of its own: an error there reaches nobody, and the
reader waits for ever. So `put` looks for device tensors itself, and what it does not find (inside
of the program's own objects, in the workers of a DataLoader) is refused at `get`, in the reader.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from multiprocessing import queues
from multiprocessing.reduction import ForkingPickler
from typing import Any

TEXT = (
    "device memory cannot be shared between processes of a session: "
    "send tensor.cpu(), or open the device in the process that uses it"
)
DEEPEST = 8
"""Containers inside of each other that `put` looks into."""


class SharingRefused(RuntimeError):
    """A device tensor was to be pickled for another process."""


class _Refusal:
    """Stands in a queue for what could not be sent; unpickling it raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()


def refuse(*_: Any, **__: Any) -> Any:
    """Raise SharingRefused, as torch's functions that share device memory."""
    raise SharingRefused(TEXT)


def has_device_tensor(torch: Any, what: object, depth: int = DEEPEST) -> bool:
    """Whether `what`, or a container that it is, holds a tensor or storage on a device."""
    if isinstance(what, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
        return bool(what.device.type == "cuda")
    if isinstance(what, torch.nn.Module):
        return any(t.device.type == "cuda" for t in (*what.parameters(), *what.buffers()))
    if depth == 0:
        return False
    if isinstance(what, Mapping):
        what = (*what.keys(), *what.values())
    if isinstance(what, (list, tuple, set, frozenset)):
        return any(has_device_tensor(torch, one, depth - 1) for one in what)
    return False


def apply(torch: Any) -> None:
    """Called by `patches.apply`, once."""
    torch.UntypedStorage._share_cuda_ = refuse
    torch.UntypedStorage._new_shared_cuda = staticmethod(refuse)

    def refusing(put: Any) -> Any:
        @functools.wraps(put)
        def call(self: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
            # The error of a loader's worker has to reach the loader: it goes through the queue.
            data = sys.modules.get("torch.utils.data")
            in_loader = data is not None and data.get_worker_info() is not None
            if not in_loader and has_device_tensor(torch, obj):
                refuse()
            return put(self, obj, *args, **kwargs)

        return call

    queue: Any = queues.Queue  # the methods below are private
    start, told = queue._start_thread, queue._on_queue_feeder_error

    @functools.wraps(start)
    def _start_thread(self: Any) -> None:
        if self._on_queue_feeder_error is told:  # executors have one that tells the caller
            self._on_queue_feeder_error = functools.partial(_send_refusal, self, told)
        start(self)

    queue._start_thread = _start_thread
    for kind in (queues.Queue, queues.JoinableQueue):
        kind.put = refusing(kind.put)  # type: ignore[method-assign]


def _send_refusal(queue: Any, told: Any, error: Exception, obj: Any) -> None:
    """In the queue's thread: what could not be pickled is replaced by its refusal."""
    if not isinstance(error, SharingRefused):
        told(error, obj)
        return
    queue._sem.acquire()  # it was given back for `obj`
    with queue._wlock:
        queue._send_bytes(ForkingPickler.dumps(_Refusal()))
