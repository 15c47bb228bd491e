"""Stand-ins for what a proxied device does not have: one sentence instead of a driver error."""

from __future__ import annotations


def refused(what: str, instead: str) -> type:
    """A stand-in for `what` that raises one sentence when it is called or made."""

    def __new__(cls: type, *args: object, **kwargs: object) -> object:
        raise RuntimeError(f"{what} is not supported on a proxied device: {instead}")

    return type("Refused", (), {"__new__": __new__, "__doc__": f"{what}: refused, {instead}"})


GRAPHS = "run the operations eagerly (the proxy already sends them asynchronously)"
POOLS = "allocate normally; the device proxy owns the memory"
POINTER = "it needs a device inside this process, which a session never has"
TUNING = "the device proxy chooses its kernels itself"
SHARING = "send tensor.cpu() to the other process"

TABLE: dict[str, tuple[str, str]] = {
    "_CUDAGraph": ("A CUDA graph", GRAPHS),
    "_graph_pool_handle": ("A memory pool for CUDA graphs", GRAPHS),
    "_CUDAGreenContext": ("A green context", GRAPHS),
    "_GreenContext": ("A green context", GRAPHS),
    "_MemPool": ("torch.cuda.MemPool", POOLS),
    "_cuda_CUDAAllocator": ("An own allocator", POOLS),
    "_cuda_customAllocator": ("An own allocator", POOLS),
    "_cuda_changeCurrentAllocator": ("An own allocator", POOLS),
    "_cuda_getAllocator": ("An own allocator", POOLS),
    "_cuda_cudaCachingAllocator_raw_alloc": ("An allocation by address", POOLS),
    "_cuda_cudaCachingAllocator_raw_delete": ("An allocation by address", POOLS),
    "_cuda_record_memory_history": ("The history of allocations", POOLS),
    "_cuda_record_memory_history_legacy": ("The history of allocations", POOLS),
    "_cuda_attach_out_of_memory_observer": (
        "An observer of memory errors",
        "catch torch.OutOfMemoryError",
    ),
    "_cuda_getCurrentBlasHandle": ("A cuBLAS handle", POINTER),
    "_cuda_getCurrentSolverHandle": ("A cuSOLVER handle", POINTER),
    "_cuda_jiterator_compile_and_launch_kernel": ("A kernel of the jiterator", POINTER),
    "_cuda_getStreamFromExternal": ("A stream of another library", POINTER),
    "_cuda_sleep": (
        "torch.cuda._sleep",
        "it spins a GPU for tests of CUDA itself; use time.sleep",
    ),
    **{
        f"_cuda_{name}": ("A private memory pool", POOLS)
        for name in (
            "beginAllocateCurrentThreadToPool",
            "beginAllocateCurrentStreamToPool",
            "beginAllocateToPool",
            "endAllocateToPool",
            "releasePool",
            "CUDAAllocator_AllocatorState",
            "getCheckpointState",
            "setCheckpointPoolState",
            "checkPoolLiveAllocations",
            "setMemoryMetadata",
            "getMemoryMetadata",
            "allocationTraceback",
        )
    },
    **{
        f"_cuda_{name}": ("Tuning of kernels (torch.cuda.tunable)", TUNING)
        for name in (
            "tunableop_enable",
            "tunableop_tuning_enable",
            "record_untuned_enable",
            "tunableop_set_rotating_buffer_size",
            "tunableop_get_rotating_buffer_size",
            "tunableop_set_numerical_check_tolerances",
            "tunableop_set_max_tuning_iterations",
            "tunableop_get_max_tuning_iterations",
            "tunableop_set_max_tuning_duration",
            "tunableop_get_max_tuning_duration",
            "tunableop_set_filename",
            "tunableop_get_filename",
            "tunableop_read_file",
            "tunableop_write_file",
            "tunableop_get_results",
            "tunableop_get_validators",
            "setCublasWorkspaceSize",
            "getCublasWorkspaceSize",
            "resetCublasWorkspaceSize",
            "setCublasLtWorkspaceSize",
            "getCublasLtWorkspaceSize",
            "resetCublasLtWorkspaceSize",
            "getHipblasltVersion",
        )
    },
}
"""Name in `torch._C` -> (what it is for its user, what to do instead)."""


def names() -> dict[str, type]:
    """The stand-ins, by their name in `torch._C`; used by `torch_c`."""
    return {name: refused(what, instead) for name, (what, instead) in TABLE.items()}
