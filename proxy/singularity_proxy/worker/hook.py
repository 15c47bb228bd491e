"""Waits for `import torch` in a session's process, then puts the device proxy behind "cuda".

Loaded at interpreter start by `singularity_proxy.pth`, only when SINGULARITY_SESSION is set; it
must stay cheap and import nothing heavy: every Python process of the session pays for it.

The moment matters: `torch._C` must be complete and `torch.cuda` not yet imported, so the loader of
`torch._C` is wrapped rather than torch's own autoload entry points used (they come too late).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from singularity_proxy import HIDDEN_DEVICES

_unavailable: str | None = None
"""Why this process cannot have the device proxy behind "cuda"."""


def _after_torch_c(module: ModuleType) -> None:
    global _unavailable
    from singularity_proxy.errors import SingularityError

    try:
        from .cuda_api import torch_c  # builds and loads the native module

        torch_c.take_over(module)
    except SingularityError as error:
        _unavailable = error.message


def _after_torch(module: ModuleType) -> None:
    if _unavailable is None:
        from .cuda_api import patches

        patches.apply(module)
    else:
        from .cuda_api import unavailable

        unavailable.apply(module, _unavailable)


def _refuse(module: ModuleType) -> None:
    from . import refusals

    refusals.apply(module)


def _count_steps(module: ModuleType) -> None:
    if _unavailable is None:
        from . import steps

        steps.apply(module)


def _collectives(module: ModuleType) -> None:
    if _unavailable is None:
        from .distributed import collectives

        collectives.apply(module)


def _compile(module: ModuleType) -> None:
    if _unavailable is None:
        from . import compile

        compile.apply(module)


AFTER: dict[str, Callable[[ModuleType], None]] = {
    "torch._C": _after_torch_c,
    "torch": _after_torch,
    "torch.optim.optimizer": _count_steps,
    "torch.distributed.distributed_c10d": _collectives,
    # What needs a device inside this process: refused with a sentence (see `refusals`).
    "triton.runtime.jit": _refuse,
    "numba.cuda": _refuse,
    "cupy": _refuse,
    "pycuda.driver": _refuse,
    # What is captured here and compiled in the device proxy (see `compile`).
    "torch._inductor.config": _compile,
    "torch._inductor.compile_fx": _compile,
    "torch._dynamo.backends.registry": _compile,
}
"""Module name -> what is done right after it was executed."""


class AfterImport(importlib.abc.MetaPathFinder):
    """Runs `AFTER[name]` after a module of that name was executed; otherwise invisible."""

    def __init__(self) -> None:
        self._finding: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        after = AFTER.get(name)
        if after is None or name in self._finding:
            return None
        self._finding.add(name)  # the other finders are asked through the usual way
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding.discard(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            after(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Called once at interpreter start. What hides real accelerators from processes outside of the
    proxy would only confuse the ones inside; what a program has chosen itself counts."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == HIDDEN_DEVICES:
        del os.environ["CUDA_VISIBLE_DEVICES"]
    if "torch" not in sys.modules and not any(isinstance(f, AfterImport) for f in sys.meta_path):
        sys.meta_path.insert(0, AfterImport())


install()
