"""The names that a CUDA build has in `torch._C`, answered by the device proxy.

One table for CPU and CUDA builds of torch: created in the first, overwritten in the second. What
cannot work gets a class or function that says so (`Refused`).
"""

from __future__ import annotations

import os
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

from . import link

CAPABILITY = (9, 0)
COMPILED_VERSION = 12080
"""Only for CPU builds, which have no CUDA version of their own (`patches` sets one to fit)."""

native: Any = None
"""The native module, after `take_over`."""


def refused(what: str, instead: str) -> type:
    """A stand-in for `what` that raises one sentence when it is used."""

    def __new__(cls: type, *args: object, **kwargs: object) -> object:
        raise RuntimeError(f"{what} is not supported on a proxied device: {instead}")

    return type(what, (), {"__new__": __new__, "__doc__": f"{what}: refused, {instead}"})


class DeviceProperties:
    """What `torch.cuda.get_device_properties` returns; memory sizes in bytes."""

    def __init__(self, index: int) -> None:
        native.open_ring(index)
        known = link.info(index)
        self.name = "Singularity device proxy"
        self.major, self.minor = CAPABILITY
        self.total_memory = known.memory_capacity_bytes if known else 0
        self.multi_processor_count = os.cpu_count() or 1
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.max_threads_per_multi_processor = 2048
        self.max_threads_per_block = 1024
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = 49152
        self.shared_memory_per_multiprocessor = 49152
        self.L2_cache_size = 1 << 20
        self.clock_rate = 0
        self.gcnArchName = ""
        self.uuid = f"SINGULARITY-{os.environ.get('SINGULARITY_SESSION', '')}-{index}"
        self.pci_bus_id = self.pci_device_id = self.pci_domain_id = 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count})"
        )


def _index(device: int | None) -> int:
    return native.current_device() if device is None or device < 0 else device


def _pool(current: float = 0, peak: float = 0) -> dict[str, int]:
    return {"current": int(current), "peak": int(peak), "allocated": 0, "freed": 0}


def memory_stats(device: int = -1) -> dict[str, Any]:
    """Nested counters as torch.cuda.memory expects them; bytes of the whole device proxy."""
    stats = native.stats(_index(device))
    held = _pool(stats.get("memory_current", 0), stats.get("memory_peak", 0))
    names = (
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
        "allocation",
        "segment",
        "active",
        "inactive_split",
    )
    counters: dict[str, Any] = {
        name: {
            "all": dict(held)
            if name.split("_")[0] in ("allocated", "reserved", "active", "requested")
            else _pool(),
            "small_pool": _pool(),
            "large_pool": _pool(),
        }
        for name in names
    }
    counters["active"] = {"all": _pool(), "small_pool": _pool(), "large_pool": _pool()}
    counters.update(
        num_alloc_retries=0,
        num_ooms=0,
        max_split_size=-1,
        num_sync_all_streams=0,
        num_device_alloc=0,
        num_device_free=0,
        oversize_allocations=_pool(),
        oversize_segments=_pool(),
    )
    return counters


def memory_info(device: int = -1) -> tuple[int, int]:
    """(free, total) bytes of the device."""
    index = _index(device)
    native.open_ring(index)
    known = link.info(index)
    total = known.memory_capacity_bytes if known else 0
    return max(total - int(native.stats(index).get("memory_current", 0)), 0), total


def _stream_base(torch_c: ModuleType) -> type:
    class _CudaStreamBase(torch_c.Stream):  # type: ignore[misc,name-defined]
        """Streams are markers: a virtual device has one in-order queue."""

        def __new__(
            cls,
            priority: int = 0,
            stream_id: int | None = None,
            device_index: int | None = None,
            device_type: int | None = None,
            stream_ptr: int | None = None,
            **_: Any,
        ) -> Any:
            if stream_id is not None:
                return torch_c.Stream.__new__(
                    cls, stream_id=stream_id, device_index=device_index, device_type=device_type
                )
            return torch_c.Stream.__new__(
                cls, device=f"cuda:{native.current_device()}", priority=priority
            )

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        @property
        def priority(self) -> int:
            return 0

    return _CudaStreamBase


def _event_base(torch_c: ModuleType) -> type:
    class _CudaEventBase:
        """Markers in a device's queue; times are of the proxy's clock."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return object.__new__(cls)

        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> None:
            if interprocess:
                raise RuntimeError(
                    "interprocess events are not supported on a proxied device: "
                    "synchronize before handing data to another process"
                )
            self.enable_timing = enable_timing
            self._event = native.Event()
            self._device_index = native.current_device()

        @property
        def cuda_event(self) -> int:
            return int(self._event.id)

        event_id = cuda_event

        @property
        def device(self) -> Any:
            import torch

            return torch.device("cuda", self._device_index)

        def record(self, stream: Any = None) -> None:
            self._device_index = (
                stream.device_index if stream is not None else native.current_device()
            )
            self._event.record(self._device_index)

        def wait(self, stream: Any = None) -> None:
            """Nothing to wait for: everything of a device is already in order."""

        def query(self) -> bool:
            return bool(self._event.done())

        def synchronize(self) -> None:
            native.synchronize(self._device_index)

        def elapsed_time(self, end: Any) -> float:
            if not (self.enable_timing and end.enable_timing):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            return float(self._event.elapsed_ms(end._event))

        def ipc_handle(self) -> bytes:
            raise RuntimeError("interprocess events are not supported on a proxied device")

    return _CudaEventBase


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
    mode = 0


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

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        native.exchange_device(device_index)
        native.set_stream(device_index, stream_id)

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    working: dict[str, Any] = {
        "_has_cuda": True,
        "_CudaDeviceProperties": DeviceProperties,
        "_CudaStreamBase": _stream_base(torch_c),
        "_CudaEventBase": _event_base(torch_c),
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
        "_cuda_maybeExchangeDevice": native.exchange_device,
        "_cuda_hasPrimaryContext": native.is_open,
        "_cuda_canDeviceAccessPeer": lambda a, b: True,
        "_cuda_synchronize": lambda: native.synchronize(-1),
        "_cuda_getCompiledVersion": lambda: COMPILED_VERSION,
        "_cuda_getArchFlags": lambda: "sm_{}{}".format(*CAPABILITY),
        "_cuda_emptyCache": nothing,
        "_cuda_memoryStats": memory_stats,
        "_cuda_resetPeakMemoryStats": lambda device: native.reset_peak_memory(_index(device)),
        "_cuda_resetAccumulatedMemoryStats": nothing,
        "_cuda_hostMemoryStats": dict,
        "_cuda_resetPeakHostMemoryStats": nothing,
        "_cuda_resetAccumulatedHostMemoryStats": nothing,
        "_cuda_memorySnapshot": lambda *_: {"segments": [], "device_traces": []},
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_enable": nothing,
        "_cuda_getCurrentStream": lambda device: (native.stream_of(device), _index(device), 1),
        "_cuda_getDefaultStream": lambda device: (0, _index(device), 1),
        "_cuda_getCurrentRawStream": native.stream_of,
        "_cuda_setStream": set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_ipc_collect": nothing,
        "_cuda_sleep": nothing,
        "_cuda_get_sync_debug_mode": lambda: _SyncDebug.mode,
        "_cuda_set_sync_debug_mode": lambda mode: setattr(_SyncDebug, "mode", mode),
        "_cuda_cudaHostAllocator": lambda: 0,
        "_cuda_clearCublasWorkspaces": nothing,
        "_cuda_isHistoryEnabled": lambda: False,
        "_cuda_lock_mutex": nothing,
        "_cuda_unlock_mutex": nothing,
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_tunableop_tuning_is_enabled": lambda: False,
        "_cuda_record_untuned_is_enabled": lambda: False,
        "_cudart": SimpleNamespace(
            cudaMemGetInfo=memory_info,
            cudaGetErrorString=lambda code: f"error {code}",
            cudaError=SimpleNamespace(success=0),
            cudaHostRegister=lambda *_: 0,
            cudaHostUnregister=lambda *_: 0,
            cudaProfilerStart=lambda: 0,
            cudaProfilerStop=lambda: 0,
        ),
        "_nvtx": _nvtx(),
    }
    graphs = "run the operations eagerly (the proxy already sends them asynchronously)"
    pools = "allocate normally; the device proxy owns the memory"
    for name in ("_CUDAGraph", "_graph_pool_handle", "_CUDAGreenContext"):
        working[name] = refused(name, graphs)
    for name in (
        "_MemPool",
        "_cuda_CUDAAllocator",
        "_cuda_beginAllocateCurrentThreadToPool",
        "_cuda_beginAllocateCurrentStreamToPool",
        "_cuda_beginAllocateToPool",
        "_cuda_endAllocateToPool",
        "_cuda_releasePool",
        "_cuda_customAllocator",
        "_cuda_changeCurrentAllocator",
        "_cuda_getAllocator",
        "_cuda_cudaCachingAllocator_raw_alloc",
        "_cuda_cudaCachingAllocator_raw_delete",
        "_cuda_getCheckpointState",
        "_cuda_setCheckpointPoolState",
        "_cuda_checkPoolLiveAllocations",
        "_cuda_setMemoryFraction",
        "_cuda_getMemoryFraction",
    ):
        working[name] = refused(name, pools)
    for name in (
        "_cuda_getCurrentBlasHandle",
        "_cuda_getCurrentSolverHandle",
        "_cuda_jiterator_compile_and_launch_kernel",
        "_cuda_getStreamFromExternal",
        "_cuda_record_memory_history",
        "_cuda_record_memory_history_legacy",
        "_cuda_attach_out_of_memory_observer",
    ):
        working[name] = refused(name, "it needs a device inside this process")
    if hasattr(torch_c, "_cuda_getCompiledVersion"):
        # A CUDA build: extension packages compare its version with their own.
        for name in ("_cuda_getCompiledVersion", "_cuda_getArchFlags"):
            del working[name]
    return working


def take_over(torch_c: ModuleType) -> None:
    """Called by `hook` when `torch._C` is loaded and `torch.cuda` is not yet imported."""
    global native
    from singularity_proxy import build

    native = build.load()
    native.set_open_ring(link.open_ring, threading.main_thread().ident)
    native.set_launch_blocking(os.environ.get("CUDA_LAUNCH_BLOCKING") == "1")
    native.install()
    for name, value in names(torch_c).items():
        setattr(torch_c, name, value)
