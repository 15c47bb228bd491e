"""Device tensors on their way to other processes of the session: each arrives as a copy.

Every process has a queue of its own to the device proxy, and so device memory of its own. A storage
goes through shared host memory, a small one with the message itself; tensors of one message that
share a storage share the copy.

A multiprocessing queue pickles in a thread of its own: an error there reaches nobody, and the
reader waits for ever. So `put` itself pickles what holds tensors of a device, and raises what is
refused. What it does not see (inside of the program's own objects) and what a DataLoader's worker
may not send is refused at `get`, in the reader.
"""

from __future__ import annotations

import ctypes
import functools
import pickle
import sys
import threading
import warnings
from collections.abc import Mapping
from multiprocessing import context, process, queues
from multiprocessing.reduction import ForkingPickler
from typing import Any

ADDRESS = (
    "device memory has no handle that another process could open: "
    "send the tensor, which arrives as a copy, or tensor.cpu()"
)
SHARED = (
    "share_memory_() was called on this tensor, and device memory cannot be shared between "
    "processes of a session: share tensor.cpu(), or send tensor.clone(), which arrives as a copy"
)
COPIED = (
    "tensors on a device arrive in another process of the session as copies: "
    "neither process sees what the other one writes into them later"
)
DEEPEST = 8
"""Containers inside of each other that `put` looks into."""
SMALL_BYTES = 16 << 10
"""A storage up to this size takes no file descriptor, and outlives its sender."""
OF_LIBRARIES = ("singularity_proxy.", "multiprocessing.", "torch.", "concurrent.")


class SharingRefused(RuntimeError):
    """Something of a device was to be sent to another process, and cannot be."""


class NoHandle(SharingRefused):
    """torch asked for the address of device memory."""


class _Thread(threading.local):
    """What holds for this thread."""

    unheard = False
    """Nobody hears an error of this thread: a refusal is sent in the place of what is refused."""

    def __init__(self) -> None:
        self.for_child: list[Any] = []
        """Copies for a process that is just being started; it opens them by their number."""


class _Pickled:
    """A message that is pickled already."""

    def __init__(self, message: object) -> None:
        self.data = bytes(ForkingPickler.dumps(message))

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.data,)


_thread = _Thread()
_warned = False


def refuse(text: str) -> Any:
    """Raise SharingRefused."""
    raise SharingRefused(text)


def rebuild_storage(index: int, host: Any) -> Any:
    """Make a storage on device `index` of this process with the bytes of `host`."""
    import torch

    if isinstance(host, bytes):
        host = torch.tensor(bytearray(host), dtype=torch.uint8).untyped_storage()
    return torch.UntypedStorage(host.nbytes(), device=f"cuda:{index}").copy_(host)


def holds_device_object(torch: Any, what: object, depth: int = DEEPEST) -> bool:
    """Whether `what`, or a container that it is, holds something of a device."""
    if isinstance(what, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
        return bool(what.device.type == "cuda")
    if isinstance(what, (torch.cuda.Event, torch.cuda.Stream)):
        return True
    if isinstance(what, torch.nn.Module):
        return any(t.device.type == "cuda" for t in (*what.parameters(), *what.buffers()))
    if depth == 0:
        return False
    if isinstance(what, Mapping):
        what = (*what.keys(), *what.values())
    if isinstance(what, (list, tuple, set, frozenset)):
        return any(holds_device_object(torch, one, depth - 1) for one in what)
    return False


def apply(torch: Any) -> None:
    """Called by `patches.apply`, once."""
    _storages(torch)
    _reductions(torch)
    _processes()
    _queues(torch)


def _in_loader() -> bool:
    """Whether this process is a worker of a DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _refusal(error: Exception) -> tuple[Any, ...]:
    """What stands in a message for what cannot be sent; raises where somebody hears of it."""
    if _thread.unheard:
        return refuse, (str(error),)
    raise error if isinstance(error, SharingRefused) else SharingRefused(str(error)) from error


def _warn_of_copies() -> None:
    """Once in a process. A loader's worker makes what it sends, and keeps none of it."""
    global _warned
    if _warned or _in_loader():
        return
    _warned = True
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(OF_LIBRARIES):
        level, frame = level + 1, frame.f_back
    warnings.warn(COPIED, stacklevel=level)


def _storages(torch: Any) -> None:
    cls = torch.UntypedStorage
    share = cls.share_memory_

    def no_handle(*_: Any, **__: Any) -> Any:
        raise NoHandle(ADDRESS)

    @functools.wraps(share)
    def share_memory_(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "cuda":  # nothing to do, as on CUDA, until it is sent
            self.shared_by_program = True
        return share(self, *args, **kwargs)

    cls._share_cuda_ = no_handle
    cls._new_shared_cuda = staticmethod(no_handle)
    cls.share_memory_ = share_memory_


def _reductions(torch: Any) -> None:
    """How the pickler of multiprocessing takes things of a device apart."""
    from torch.multiprocessing import reductions

    of_tensor, of_storage = reductions.reduce_tensor, reductions.reduce_storage
    of_event = reductions.reduce_event

    def copy_to_host(storage: Any) -> Any:
        if getattr(storage, "shared_by_program", False):
            refuse(SHARED)
        _warn_of_copies()
        size = storage.nbytes()
        if size <= SMALL_BYTES:
            host = storage.cpu()
            return ctypes.string_at(host.data_ptr(), size)
        host = torch.UntypedStorage._new_shared(size).copy_(storage)
        if context.get_spawning_popen() is not None:
            _thread.for_child.append(host)
        return host

    def reduce_storage(storage: Any) -> tuple[Any, ...]:
        if storage.device.type != "cuda":
            return of_storage(storage)  # type: ignore[no-any-return]
        try:
            return rebuild_storage, (storage.device.index, copy_to_host(storage))
        except Exception as error:
            return _refusal(error)

    def reduce_tensor(tensor: Any) -> tuple[Any, ...]:
        try:
            return of_tensor(tensor)  # type: ignore[no-any-return]
        except NoHandle:  # checked, and neither sparse nor nested
            storage = tensor._typed_storage()
        except Exception as error:
            if tensor.device.type != "cuda":
                raise
            return _refusal(error)
        place = tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.requires_grad
        return reductions.rebuild_tensor, (type(tensor), storage, place)

    def reduce_event(event: Any) -> tuple[Any, ...]:
        try:
            return of_event(event)  # type: ignore[no-any-return]
        except Exception as error:
            return _refusal(error)

    replaced = {of_tensor: reduce_tensor, of_storage: reduce_storage, of_event: reduce_event}
    for reduce in replaced.values():  # torch's own calls them by name for parts of a tensor
        setattr(reductions, reduce.__name__, reduce)
    registered: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind, reduce in list(registered.items()):
        if reduce in replaced:
            ForkingPickler.register(kind, replaced[reduce])


def _processes() -> None:
    start = process.BaseProcess.start

    @functools.wraps(start)
    def keeping(self: Any) -> None:
        try:
            start(self)
        finally:
            _thread.for_child.clear()

    process.BaseProcess.start = keeping  # type: ignore[method-assign]


def _queues(torch: Any) -> None:
    def looking(put: Any) -> Any:
        @functools.wraps(put)
        def call(self: Any, obj: Any, block: bool = True, timeout: float | None = None) -> Any:
            if not holds_device_object(torch, obj) or (not block and self.full()):
                return put(self, obj, block, timeout)
            before, _thread.unheard = _thread.unheard, _in_loader()
            try:
                message = _Pickled(obj)
            finally:
                _thread.unheard = before
            try:
                return put(self, message, block, timeout)
            except Exception:  # it is full, or closed
                pickle.loads(message.data)  # gives back what it holds of shared memory
                raise

        return call

    for kind in (queues.Queue, queues.JoinableQueue):
        kind.put = looking(kind.put)  # type: ignore[method-assign]

    private: Any = queues.Queue
    feed, told = private._feed, private._on_queue_feeder_error

    @functools.wraps(feed)
    def _feed(*args: Any) -> None:
        _thread.unheard = told in args  # executors have one that tells the caller
        feed(*args)

    private._feed = staticmethod(_feed)
