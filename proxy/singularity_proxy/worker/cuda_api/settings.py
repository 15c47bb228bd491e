"""torch's process-wide settings, followed by the device proxy (`native/settings.h` says which).

The setters of `torch._C` are wrapped when `torch._C` is loaded, before any module of torch takes
hold of them: each call tells the native worker that something may have changed, and the next
operator carries the news to the proxy, in order with the operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from singularity_proxy.worker.native import native

SETTERS = (
    "_set_default_dtype",
    "_set_default_tensor_type",
    "_set_deterministic_algorithms",
    "_set_deterministic_fill_uninitialized_memory",
    "_set_float32_matmul_precision",
    "_set_fp32_precision_setter",
    "_set_cublas_allow_tf32",
    "_set_cublas_allow_fp16_accumulation",
    "_set_cublas_allow_fp16_reduced_precision_reduction",
    "_set_cublas_allow_bf16_reduced_precision_reduction",
    "_set_cudnn_allow_tf32",
    "_set_cudnn_benchmark",
    "_set_cudnn_depthwise_kernel",
    "_set_cudnn_deterministic",
    "_set_cudnn_enabled",
    "_set_onednn_allow_tf32",
    "_set_mkldnn_enabled",
    "_set_mkldnn_deterministic",
    "_set_nnpack_enabled",
    "_set_linalg_preferred_backend",
    "_set_blas_preferred_backend",
    "_set_sdp_use_flash",
    "_set_sdp_use_fa3",
    "_set_sdp_use_mem_efficient",
    "_set_sdp_use_math",
    "_set_sdp_use_cudnn",
    "_set_sdp_use_overrideable",
    "_set_sdp_priority_order",
    "_set_math_sdp_allow_fp16_bf16_reduction",
)
"""Some of them exist in some versions of torch only."""


def _followed(setter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(setter)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return setter(*args, **kwargs)
        finally:
            native.settings_changed()

    return call


def follow(torch_c: ModuleType) -> None:
    """Called by `torch_c.take_over`, once."""
    for name in SETTERS:
        if hasattr(torch_c, name):
            setattr(torch_c, name, _followed(getattr(torch_c, name)))


class CudnnOfDevice:
    """Stands for the module `torch._C._cudnn` where the physical device is a GPU."""

    is_cuda = True

    class RNNMode:
        rnn_relu, rnn_tanh, lstm, gru = range(4)

    @staticmethod
    def getVersionInt() -> int:
        facts = native.device_facts(native.current_device())
        if not facts["generation"]:  # only the device itself knows: ask for one
            import torch

            torch.empty(1, device="cuda")
            torch.cuda.synchronize()
            facts = native.device_facts(native.current_device())
        return int(facts["cudnn_version"])

    @classmethod
    def getRuntimeVersion(cls) -> tuple[int, int, int]:
        number = cls.getVersionInt()
        major = number // 10000 if number >= 90000 else number // 1000
        rest = number - major * (10000 if number >= 90000 else 1000)
        return major, rest // 100, rest % 100

    getCompileVersion = getRuntimeVersion  # the proxy has loaded the one that it names


def report_cudnn(torch_c: ModuleType) -> None:
    """`torch.backends.cudnn` tells of the physical device: a cpu has no cuDNN, whatever this build
    of torch was compiled with, and a GPU has the proxy's."""
    on_gpu = not native.proxy_is_cpu()
    torch_c._has_cudnn = on_gpu  # type: ignore[attr-defined]
    torch_c._cudnn = CudnnOfDevice if on_gpu else None  # type: ignore[attr-defined]
