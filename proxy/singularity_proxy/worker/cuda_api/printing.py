"""Printing a tensor of the device: what will be shown is fetched at once.

torch formats a tensor by reading one number after the other, and each read of a device tensor is a
round trip. Formatting needs the corners of a large tensor only, so these are what is copied.
"""

from __future__ import annotations

import os
import threading
from typing import Any

MAX_INDICES = 4096
"""Items per printed tensor, over all dimensions, up to which only its corners are fetched."""


def apply(torch: Any) -> None:
    """Called by `patches` when torch was imported: wraps `torch._tensor_str._tensor_str`."""
    module = torch._tensor_str
    on_host = module._tensor_str
    # The threshold is changed for a moment, which no other thread may see. It is never held while
    # something is fetched: that takes as long as the session has no device.
    lock = threading.RLock()

    def renew() -> None:  # in a fork nobody is left who would release it
        nonlocal lock
        lock = threading.RLock()

    os.register_at_fork(after_in_child=renew)

    def shown(tensor: Any, indent: int) -> Any:
        if tensor.layout is not torch.strided:
            return on_host(tensor, indent)
        if tensor.device.type != "cuda":
            with lock:
                return on_host(tensor, indent)
        options = module.PRINT_OPTS
        with lock:
            summarized = tensor.numel() > options.threshold
        if not summarized:
            fetched = tensor.detach().cpu()
            with lock:
                return on_host(fetched, indent)
        fetched = _corners(torch, tensor.detach(), options.edgeitems)
        with lock:
            threshold = options.threshold
            options.threshold = 0  # the corners are few, but stand for a tensor that is summarized
            try:
                return on_host(fetched, indent)
            finally:
                options.threshold = threshold

    module._tensor_str = shown


def _corners(torch: Any, tensor: Any, edge: int) -> Any:
    """`tensor` on the host with the middle of every long dimension cut down to the one item that
    makes torch write "..."; one operator and one read, whatever its rank."""
    kept = [
        [*range(edge + 1), *range(size - edge, size)] if size > 2 * edge + 1 else list(range(size))
        for size in tensor.shape
    ]
    if not tensor.dim() or not edge or sum(map(len, kept)) > MAX_INDICES:
        return tensor.cpu()
    # Lazy bits would make the operator resolve the whole tensor first: they are set again after it.
    conjugate, negative = tensor.is_conj(), tensor.is_neg()
    if conjugate:
        tensor = tensor.conj()
    if negative:
        tensor = torch._neg_view(tensor)
    indices = [
        torch.tensor(items, device="cpu").view(-1, *[1] * (tensor.dim() - 1 - dim))
        for dim, items in enumerate(kept)
    ]
    dtype = tensor.dtype
    if dtype == getattr(torch, "float4_e2m1fn_x2", None):  # torch shows its bytes
        tensor = tensor.view(torch.uint8)
    corners = torch.ops.aten.index.Tensor(tensor, indices).cpu()
    if corners.dtype != dtype:
        corners = corners.view(dtype)
    if negative:
        corners = torch._neg_view(corners)
    return corners.conj() if conjugate else corners
