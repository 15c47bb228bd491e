"""`torch.cuda.memory_*`: what this process has on a virtual device, as it allocates (bytes).

An allocation counts as soon as the worker has asked for it, as on CUDA. Peaks also hold what
operators used inside, as far as the proxy has executed them. Free memory is that of the device:
other processes of the session have some of it too.
"""

from __future__ import annotations

from typing import Any

from singularity_proxy.worker.native import native

POOLS = {"all": 2, "small_pool": 0, "large_pool": 1}
"""Name in torch -> place in the native lists (`Usage::Pool`)."""

_fractions: dict[int, float] = {}


def index_of(device: int | None) -> int:
    """The virtual device that torch means; None and -1 are the current one."""
    return int(native.current_device()) if device is None or device < 0 else device


def _pools(figures: list[dict[str, int]]) -> dict[str, dict[str, int]]:
    return {name: dict(figures[place]) for name, place in POOLS.items()}


def _nothing() -> dict[str, int]:
    return {"current": 0, "peak": 0, "allocated": 0, "freed": 0}


def stats(device: int = -1) -> dict[str, Any]:
    """Nested counters under the names that torch.cuda.memory expects. There is no cache in this
    process, so every allocation is a segment of its own and nothing is split or retried."""
    figures = native.memory_figures(index_of(device))
    nothing = {name: _nothing() for name in POOLS}
    return {
        "allocation": _pools(figures["count"]),
        "segment": _pools(figures["count"]),
        "active": _pools(figures["count"]),
        "inactive_split": nothing,
        "allocated_bytes": _pools(figures["allocated"]),
        "reserved_bytes": _pools(figures["reserved"]),
        "active_bytes": _pools(figures["allocated"]),
        "inactive_split_bytes": nothing,
        "requested_bytes": _pools(figures["requested"]),
        "oversize_allocations": _nothing(),
        "oversize_segments": _nothing(),
        "num_alloc_retries": 0,
        "num_ooms": figures["out_of_memory"],
        "num_sync_all_streams": 0,
        "num_device_alloc": figures["count"][POOLS["all"]]["allocated"],
        "num_device_free": figures["count"][POOLS["all"]]["freed"],
        "max_split_size": -1,
    }


def snapshot(*_: Any) -> dict[str, Any]:
    """One segment per device and pool that holds something: the sums are right, and there are no
    addresses of single blocks to tell."""
    segments = []
    for device in range(native.device_count()):
        figures = native.memory_figures(device)
        for pool in ("small_pool", "large_pool"):
            held = figures["allocated"][POOLS[pool]]["current"]
            if held:
                wanted = figures["requested"][POOLS[pool]]["current"]
                block = {"size": held, "requested_size": wanted, "state": "active_allocated"}
                segments.append(
                    {
                        "device": device,
                        "address": 0,
                        "stream": 0,
                        "segment_type": pool.removesuffix("_pool"),
                        "segment_pool_id": (0, 0),
                        "total_size": held,
                        "allocated_size": held,
                        "active_size": held,
                        "requested_size": wanted,
                        "is_expandable": False,
                        "frames": [],
                        "blocks": [{**block, "address": 0, "frames": []}],
                    }
                )
    return {"segments": segments, "device_traces": [], "allocator_settings": {}}


def info(device: int = -1) -> tuple[int, int]:
    """(free, total) bytes of the device."""
    free, total = native.memory_info(index_of(device))
    return int(free), int(total)


def set_fraction(fraction: float, device: int) -> None:
    """Limit this process to a part of the device; the allocation that is too much fails."""
    if fraction < 1 and not native.proxy_is_cpu():
        raise RuntimeError(
            "torch.cuda.set_per_process_memory_fraction is not supported on a proxied GPU, whose "
            "allocator has one limit for the session: ask for a smaller batch instead"
        )
    _, total = info(device)
    native.limit_memory(device, 0 if fraction >= 1 else max(int(total * fraction), 1))
    _fractions[device] = fraction


def get_fraction(device: int) -> float:
    return _fractions.get(device, 1.0)


def names() -> dict[str, Any]:
    """What `torch_c` puts into `torch._C`."""
    return {
        "_cuda_memoryStats": stats,
        "_cuda_resetPeakMemoryStats": lambda device: native.reset_peak_memory(index_of(device)),
        "_cuda_resetAccumulatedMemoryStats": lambda device: native.reset_accumulated_memory(
            index_of(device)
        ),
        "_cuda_memorySnapshot": snapshot,
        "_cuda_emptyCache": lambda *_: native.empty_cache(native.current_device()),
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": get_fraction,
        "_cuda_hostMemoryStats": dict,
        "_cuda_resetPeakHostMemoryStats": lambda *_: None,
        "_cuda_resetAccumulatedHostMemoryStats": lambda *_: None,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_enable": lambda *_: None,
        "_cuda_cudaHostAllocator": lambda: 0,
        "_cuda_isHistoryEnabled": lambda: False,
    }
