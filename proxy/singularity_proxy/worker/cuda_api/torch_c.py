"""The names that a CUDA build has in `torch._C`, answered by the device proxy.

One table for CPU and CUDA builds of torch: created in the first, overwritten in the second. What
cannot work gets a class or function that says so (`Refused`).
"""

from __future__ import annotations

import os
import threading
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from singularity_proxy.worker import link
from singularity_proxy.worker.distributed import collectives
from singularity_proxy.worker.native import native

from . import memory, refused, settings, streams
from .properties import CAPABILITY, DeviceProperties

COMPILED_VERSION = 12080
"""Only for CPU builds, which have no CUDA version of their own (`patches` sets one to fit)."""


def _scatter(
    tensor: Any, devices: list[int], chunk_sizes: Any = None, dim: int = 0, streams: Any = None
) -> list[Any]:
    """torch.cuda.comm.scatter: pieces of `tensor` along `dim`, one per device."""
    pieces = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    return [p.to(f"cuda:{d}") for p, d in zip(pieces, devices, strict=False)]


def _gather(tensors: list[Any], dim: int, destination: int | None) -> Any:
    """torch.cuda.comm.gather: the pieces on one device (None: the current one; -1: the host)."""
    import torch

    index = native.current_device() if destination is None else destination
    device = "cpu" if index == -1 else f"cuda:{index}"
    return torch.cat([t.to(device) for t in tensors], dim)


def _broadcast(tensor: Any, devices: list[int]) -> list[Any]:
    """torch.cuda.comm.broadcast: a copy per device, the first one is the tensor itself."""
    return [tensor.to(f"cuda:{d}") for d in devices]


def _broadcast_coalesced(tensors: list[Any], devices: list[int], _: int) -> list[list[Any]]:
    """torch.cuda.comm.broadcast_coalesced: per device, a copy of every tensor."""
    return [[t.to(f"cuda:{d}") for t in tensors] for d in devices]


class _SyncDebug:
    """torch.cuda.set_sync_debug_mode: kept, and said that nobody reports the waits."""

    mode = 0

    @classmethod
    def set(cls, mode: int) -> None:
        if mode and not cls.mode:
            warnings.warn(
                "torch.cuda.set_sync_debug_mode: operations that wait for a proxied device are not "
                "reported; count them with the profiler instead",
                stacklevel=3,
            )
        cls.mode = mode


class CudaErrorCode(int):
    """A `cudaError_t`; any number is one."""

    success: ClassVar[CudaErrorCode]


CudaErrorCode.success = CudaErrorCode(0)

INVALID_VALUE = CudaErrorCode(1)
ALREADY_REGISTERED = CudaErrorCode(712)
NOT_REGISTERED = CudaErrorCode(713)

ERROR_TEXTS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    4: "driver shutting down",
    46: "CUDA-capable device(s) is/are busy or unavailable",
    98: "invalid device function",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    209: "no kernel image is available for execution on the device",
    400: "invalid resource handle",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    701: "too many resources requested for launch",
    710: "device-side assert triggered",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
    719: "unspecified launch failure",
    801: "operation not supported",
    999: "unknown error",
}
"""What `cudaGetErrorString` says (CUDA Runtime API, "Data types used by CUDA Runtime")."""


def _register_host_memory(address: int, size: int, _flags: int = 0) -> CudaErrorCode:
    """Make `size` bytes of the program's own memory count as pinned (`cudaHostRegister`)."""
    if not address or size <= 0:
        return INVALID_VALUE
    return CudaErrorCode.success if native.pin_memory(address, size) else ALREADY_REGISTERED


def _unregister_host_memory(address: int) -> CudaErrorCode:
    """Take back what `cudaHostRegister` said of the memory at `address`."""
    return CudaErrorCode.success if native.unpin_memory(address) else NOT_REGISTERED


def _nvtx() -> SimpleNamespace:
    """NVTX ranges have nobody to read them here; depths are kept as NVTX returns them."""
    local = threading.local()

    def push(_: str) -> int:
        local.depth = getattr(local, "depth", 0) + 1
        return int(local.depth) - 1

    def pop() -> int:
        local.depth = max(getattr(local, "depth", 0) - 1, 0)
        return int(local.depth)

    return SimpleNamespace(
        rangePushA=push, rangePop=pop, rangeStartA=lambda _: 0, rangeEnd=lambda _: None,
        markA=lambda _: None,
        deviceRangeStart=lambda *_: None, deviceRangeEnd=lambda *_: None,
    )  # fmt: skip


def names(torch_c: ModuleType) -> dict[str, Any]:
    """Everything that is set in `torch._C`."""

    def init() -> None:
        import torch

        if native.device_count() == 0:  # as CUDA_VISIBLE_DEVICES says
            raise RuntimeError("No CUDA GPUs are available")
        native.initialize()  # only then does torch ask which host memory is pinned
        torch.cuda.default_generators = tuple(
            native.default_generator(i) for i in range(native.device_count())
        )
        torch.cuda._get_device_properties = DeviceProperties

    def set_device(index: int) -> None:
        native.exchange_device(index)

    def maybe_exchange_device(
        index: int,
    ) -> int:  # dynamo tells it from exchange_device by identity
        previous: int = native.exchange_device(index)
        return previous

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    working: dict[str, Any] = {
        **refused.names(),
        **memory.names(),
        **streams.names(torch_c),
        **collectives.names(torch_c),
        "_has_cuda": True,
        "_CudaDeviceProperties": DeviceProperties,
        "_scatter": _scatter,
        "_gather": _gather,
        "_broadcast": _broadcast,
        "_broadcast_coalesced": _broadcast_coalesced,
        "_cuda_init": init,
        "_cuda_isInBadFork": native.in_bad_fork,
        "_cuda_getDeviceCount": native.expected_device_count,
        "_cuda_getDevice": native.current_device,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": native.exchange_device,
        "_cuda_maybeExchangeDevice": maybe_exchange_device,
        "_cuda_hasPrimaryContext": native.is_open,
        "_cuda_canDeviceAccessPeer": lambda a, b: True,
        "_cuda_synchronize": lambda: native.synchronize(-1),
        "_cuda_getCompiledVersion": lambda: COMPILED_VERSION,
        "_cuda_getArchFlags": lambda: "sm_{}{}".format(*CAPABILITY),
        "_cuda_ipc_collect": nothing,
        "_cuda_get_sync_debug_mode": lambda: _SyncDebug.mode,
        "_cuda_set_sync_debug_mode": _SyncDebug.set,
        "_cuda_clearCublasWorkspaces": nothing,
        "_cuda_get_cudnn_benchmark_limit": native.get_benchmark_limit,
        "_cuda_set_cudnn_benchmark_limit": native.set_benchmark_limit,
        "_cuda_get_conv_benchmark_empty_cache": lambda: False,
        "_cuda_set_conv_benchmark_empty_cache": nothing,
        "_set_cached_tensors_enabled": nothing,
        "_cuda_lock_mutex": nothing,
        "_cuda_unlock_mutex": nothing,
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_tunableop_tuning_is_enabled": lambda: False,
        "_cuda_record_untuned_is_enabled": lambda: False,
        "_cudart": SimpleNamespace(
            cudaMemGetInfo=memory.info,
            cudaGetErrorString=lambda code: ERROR_TEXTS.get(code, "unrecognized error code"),
            cudaError=CudaErrorCode,
            cudaHostRegister=_register_host_memory,
            cudaHostUnregister=_unregister_host_memory,
            cudaProfilerStart=lambda: CudaErrorCode.success,
            cudaProfilerStop=lambda: CudaErrorCode.success,
        ),
        "_nvtx": _nvtx(),
    }
    if hasattr(torch_c, "_cuda_getCompiledVersion"):
        # A CUDA build: extension packages compare its version with their own.
        for name in ("_cuda_getCompiledVersion", "_cuda_getArchFlags"):
            del working[name]
    return working


def take_over(torch_c: ModuleType) -> None:
    """Called by `hook` when `torch._C` is loaded and `torch.cuda` is not yet imported."""
    native.set_open_ring(link.open_ring, threading.main_thread().ident)
    native.set_launch_blocking(os.environ.get("CUDA_LAUNCH_BLOCKING") == "1")
    native.install()
    settings.follow(torch_c)
    settings.report_cudnn(torch_c)
    for name, value in names(torch_c).items():
        setattr(torch_c, name, value)
