"""The names that a CUDA build has in `torch._C`, answered by the device proxy.

One table for CPU and CUDA builds of torch: created in the first, overwritten in the second. What
cannot work gets a class or function that says so (`Refused`).
"""

from __future__ import annotations

import os
import threading
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

from . import collectives, link, memory, refused, settings, streams
from .native import native
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
        "_cuda_getDeviceCount": native.device_count,
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
            cudaGetErrorString=lambda code: f"error {code}",
            cudaError=SimpleNamespace(success=0),
            cudaHostRegister=lambda *_: 0,
            cudaHostUnregister=lambda *_: 0,
            cudaProfilerStart=lambda: 0,
            cudaProfilerStop=lambda: 0,
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
