"""Libraries that need a device inside this process: one sentence instead of a driver error.

Applied by `hook` after the module named in the table was imported, in session processes only.
"""

from __future__ import annotations

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


TABLE: dict[str, Callable[[Any], None]] = {
    "triton.runtime.jit": _triton,
    "numba.cuda": _numba,
    "cupy": _cupy,
    "pycuda.driver": _pycuda,
}


def apply(module: Any) -> None:
    """Called by `hook` after `module` was executed."""
    TABLE[module.__name__](module)
