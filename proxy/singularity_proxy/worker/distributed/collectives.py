"""torch.distributed on the proxied device.

The backend "nccl" of a session is the native module's (`src/collectives.h`): its collectives are
records of the rank's queue, which the device proxies carry out. It takes NCCL's names at the moment
when `torch._C._distributed_c10d` is complete and nothing of `torch.distributed` has looked for them
yet, so CPU and CUDA builds of torch find it alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

from singularity_proxy.worker.cuda_api.refused import refused
from singularity_proxy.worker.native import native

from . import store_guard, stores

NCCL_VERSION = (2, 27, 5)
"""What a CPU build of torch says; a CUDA build knows the one that it was built with."""
NCCL_TIMEOUT = timedelta(minutes=10)


def _version_number() -> int:
    major, minor, patch = NCCL_VERSION
    return major << 32 | minor << 16 | patch


def names(torch_c: ModuleType) -> dict[str, Any]:
    """What is set in `torch._C` itself; used by `torch_c`."""
    found: dict[str, Any] = {}
    if hasattr(torch_c, "_c10d_init"):
        found["_c10d_init"] = _completed(torch_c, torch_c._c10d_init)
    if not hasattr(torch_c, "_nccl_version"):
        found["_nccl_version"] = _version_number
        found["_nccl_version_suffix"] = lambda: b""
    return found


def _completed(torch_c: ModuleType, init: Callable[[], bool]) -> Callable[[], bool]:
    """torch's own first step of `import torch.distributed`, and then ours."""

    @functools.wraps(init)
    def _c10d_init() -> bool:
        done = init()
        if done:
            complete(torch_c._distributed_c10d)
            stores.apply(torch_c._distributed_c10d)
        return done

    return _c10d_init


def complete(c10d: Any) -> None:
    """Put the process group of proxied devices in the place of NCCL's; called once."""
    if hasattr(c10d, "ProcessGroupNCCL"):  # a CUDA build's, which opens the driver
        del c10d.ProcessGroupNCCL
    native.bind_process_group(c10d)
    group = c10d.ProcessGroupNCCL
    group.get_build_nccl_version = staticmethod(lambda: NCCL_VERSION)
    group.get_runtime_nccl_version = staticmethod(lambda: NCCL_VERSION)
    for name in ("register_mem_pool", "deregister_mem_pool", "_start_time_estimate"):
        what = f"ProcessGroupNCCL.{name}"
        setattr(group, name, refused(what, "the device proxies exchange the data themselves"))
    if not hasattr(c10d, "_DEFAULT_PG_NCCL_TIMEOUT"):
        c10d._DEFAULT_PG_NCCL_TIMEOUT = NCCL_TIMEOUT


def apply(module: Any) -> None:
    """Called by `hook` after `torch.distributed.distributed_c10d` was executed.

    gloo cannot read device memory: a CPU build would crash on it, a CUDA build would ask the
    driver. So a group of the backend "gloo" gets gloo for host tensors and ours for device tensors.
    """
    init = module.BackendConfig.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if self.device_backend_map.get("cuda") == module.Backend.GLOO:
            self.device_backend_map["cuda"] = module.Backend.NCCL

    module.BackendConfig.__init__ = __init__
    destroy = module.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        store_guard.settle()  # with the group goes its store
        destroy(*args, **kwargs)

    module.destroy_process_group = destroy_process_group
