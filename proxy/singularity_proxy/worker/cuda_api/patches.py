"""What must be set once torch itself is imported."""

from __future__ import annotations

import copyreg
import functools
import os
from typing import Any

from singularity_proxy.worker.distributed import sharing
from singularity_proxy.worker.native import native

from . import memory, printing, tensor_types
from .refused import refused


def apply(torch: Any) -> None:
    """Called by `hook` right after `torch` was executed."""
    if torch.version.cuda is None:  # a CPU build: the version that COMPILED_VERSION stands for
        torch.version.cuda = "12.8"
        tensor_types.apply(torch)
    # Without NVML in the worker the count is the number of virtual devices.
    torch.cuda._device_count_nvml = lambda: -1
    _health(torch)
    _profiler(torch)
    _nccl(torch)
    _storages(torch)
    sharing.apply(torch)
    _generators(torch)
    _raw_pointers(torch)
    printing.apply(torch)


def _health(torch: Any) -> None:
    """What torch asks NVML for: the driver is not in this process, and the physical device behind a
    virtual one may change at any time."""

    def used(device: Any = None) -> int:
        free, total = memory.info(torch.cuda._utils._get_device_index(device, optional=True))
        return total - free

    def processes(device: Any = None) -> str:
        index = torch.cuda._utils._get_device_index(device, optional=True)
        size = torch.cuda.memory_allocated(index) / (1 << 20)
        return f"GPU:{index}\nprocess {os.getpid():>10d} uses {size:>12.3f} MB GPU memory"

    torch.cuda.device_memory_used = used
    torch.cuda.list_gpu_processes = torch.cuda.memory.list_gpu_processes = processes
    instead = "the physical device may change at any time; see `jupyter singularity nodes`"
    for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate"):
        setattr(torch.cuda, name, refused(f"torch.cuda.{name}", instead))


def _profiler(torch: Any) -> None:
    """Profiles tell of this process: kernels run in the proxy, and asking CUPTI or NVTX for them in
    here opens the driver, or gives a warning per operator at best."""
    from torch.autograd import ProfilerActivity, ProfilerState, profiler

    def of_host(init: Any) -> Any:
        @functools.wraps(init)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            native.start_profiler_for_host()
            init(self, *args, **kwargs)
            if self.use_device == "cuda":
                self.profiler_kind = ProfilerState.KINETO
                self.kineto_activities.discard(ProfilerActivity.CUDA)
                self.kineto_activities.add(ProfilerActivity.CPU)

        return __init__

    def disabled(init: Any) -> Any:
        @functools.wraps(init)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            self.enabled = False

        return __init__

    profiler.profile.__init__ = of_host(profiler.profile.__init__)
    profiler.emit_nvtx.__init__ = disabled(profiler.emit_nvtx.__init__)


def _nccl(torch: Any) -> None:
    """It would open the driver in this process. torch's own code (torch.cuda.comm, DataParallel)
    asks whether it is there, and adds and copies tensors itself where it is not."""
    nccl = torch.cuda.nccl
    nccl.is_available = lambda tensors: False
    for name in ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"):
        setattr(nccl, name, refused(f"torch.cuda.nccl.{name}", "use torch.cuda.comm"))


def _storages(torch: Any) -> None:
    """CPU builds know "cuda" storages only under `#ifdef USE_CUDA`; CUDA builds call the driver."""
    cls = torch.UntypedStorage
    make, resize, getitem = cls.__new__, cls.resize_, cls.__getitem__

    def new(kind: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None:
            return make(kind, *args, **kwargs)
        if torch.device(device).type != "cuda":
            return make(kind, *args, device=device, **kwargs)
        first = args[0] if args else kwargs.get("size", 0)
        if isinstance(first, int):
            return torch.empty(first, dtype=torch.uint8, device=device).untyped_storage()
        return torch.tensor(list(first), dtype=torch.uint8, device=device).untyped_storage()

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        if not self.resizable():
            raise RuntimeError("Trying to resize storage that is not resizable")
        if size != self.nbytes():
            native.resize_storage(torch.empty(0, device=self.device).set_(self), size)
        return self

    def __getitem__(self: Any, index: Any) -> Any:
        if self.device.type != "cuda" or not isinstance(index, slice):
            return getitem(self, index)
        start, stop, step = index.indices(self.nbytes())
        if step != 1:
            raise RuntimeError(
                f"Trying to slice with a step of {step}, but only a step of 1 is supported"
            )
        whole = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        return native.slice_storage(whole, start, max(stop - start, 0))

    write_file, set_from_file = cls._write_file, cls._set_from_file

    def _write_file(self: Any, *args: Any) -> Any:  # torch.save's old format, and so pickle
        return write_file(self.cpu() if self.device.type == "cuda" else self, *args)

    def _set_from_file(self: Any, *args: Any) -> Any:
        if self.device.type != "cuda":
            return set_from_file(self, *args)
        host = torch.UntypedStorage(self.nbytes())
        set_from_file(host, *args)
        self.copy_(host)
        return self

    cls.__new__ = staticmethod(new)
    cls.resize_ = resize_
    cls.__getitem__ = __getitem__
    cls._write_file = _write_file
    cls._set_from_file = _set_from_file


def _generators(torch: Any) -> None:
    """torch's own way to copy one asks for an offset, which only the generator of a GPU has; the
    state says everything."""

    def reduce(generator: Any) -> Any:
        if generator.device.type != "cuda":
            return generator.__reduce__()
        state = (generator.initial_seed(), None, generator.get_state())
        return torch.Generator, (generator.device,), state

    copyreg.pickle(torch.Generator, reduce)


def _raw_pointers(torch: Any) -> None:
    """An address of proxied memory must not reach code that would dereference it."""
    text = (
        "a proxied device has no address that this process can read ({what}): "
        "copy the tensor to the host with .cpu() first"
    )
    dlpack = torch.Tensor.__dlpack__

    def interface(self: Any) -> Any:
        if self.device.type == "cuda":
            raise RuntimeError(text.format(what="__cuda_array_interface__"))
        raise AttributeError(f"Can't get __cuda_array_interface__ on a {self.device.type} tensor")

    def __dlpack__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "cuda":
            raise RuntimeError(text.format(what="DLPack"))
        return dlpack(self, *args, **kwargs)

    torch.Tensor.__cuda_array_interface__ = property(interface)
    torch.Tensor.__dlpack__ = __dlpack__
    to_dlpack = torch._C._to_dlpack

    def refuse_to_dlpack(tensor: Any) -> Any:
        if tensor.device.type == "cuda":
            raise RuntimeError(text.format(what="DLPack"))
        return to_dlpack(tensor)

    torch._C._to_dlpack = torch.to_dlpack = torch.utils.dlpack.to_dlpack = refuse_to_dlpack
