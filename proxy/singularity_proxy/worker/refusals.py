"""Libraries that need a device inside this process: one sentence instead of a driver error.

Applied by `hook` after the module named in the table was imported, in session processes only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def _raiser(what: str, instead: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"{what} needs a device inside this process, which a session never has: {instead}"
        )

    return refuse


def _triton(module: Any) -> None:
    module.JITFunction.run = _raiser(
        "A Triton kernel",
        "use torch operators; torch.compile makes kernels of them in the device proxy",
    )


def _numba(module: Any) -> None:
    refuse = _raiser(
        "numba.cuda", "use torch operators on device 'cuda', or numba.njit on the host"
    )
    for name in ("jit", "to_device", "device_array", "select_device", "synchronize"):
        setattr(module, name, refuse)


def _cupy(module: Any) -> None:
    refuse = _raiser("CuPy", "use torch operators on device 'cuda', or NumPy on the host")
    for name in ("array", "asarray", "zeros", "ones", "empty", "arange", "RawKernel"):
        setattr(module, name, refuse)


def _pycuda(module: Any) -> None:
    module.init = _raiser("PyCUDA", "use torch operators on device 'cuda'")


COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_single",
    "send",
    "recv",
    "isend",
    "irecv",
)


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in _tensors(item)]
    return [value] if hasattr(value, "is_cuda") else []


def _collectives(module: Any) -> None:
    """In a CPU build gloo would crash on a device tensor instead of refusing it."""

    def guard(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if any(t.is_cuda for t in _tensors([*args, *kwargs.values()])):
                raise RuntimeError(
                    f"torch.distributed.{function.__name__} does not take tensors of a proxied "
                    "device yet: send tensor.cpu() and copy the result back"
                )
            return function(*args, **kwargs)

        return checked

    for name in COLLECTIVES:
        if hasattr(module, name):
            setattr(module, name, guard(getattr(module, name)))


def _data_parallel(module: Any) -> None:
    cls = module.DistributedDataParallel
    init = cls.__init__

    @functools.wraps(init)
    def checked(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        if any(p.is_cuda for p in model.parameters()):
            raise RuntimeError(
                "DistributedDataParallel on a proxied device is not supported yet: train in one "
                "process, or keep the model on the host"
            )
        init(self, model, *args, **kwargs)

    cls.__init__ = checked


TABLE: dict[str, Callable[[Any], None]] = {
    "triton.runtime.jit": _triton,
    "numba.cuda": _numba,
    "cupy": _cupy,
    "pycuda.driver": _pycuda,
    "torch.distributed.distributed_c10d": _collectives,
    "torch.nn.parallel.distributed": _data_parallel,
}


def apply(module: Any) -> None:
    """Called by `hook` after `module` was executed."""
    TABLE[module.__name__](module)
