"""Printing a tensor of the device: what will be shown is fetched at once.

torch formats a tensor by reading one number after the other, and each read of a device tensor is a
round trip. Formatting needs the corners of a large tensor only, so these are what is copied.
"""

from __future__ import annotations

from typing import Any


def apply(torch: Any) -> None:
    """Called by `patches` when torch was imported: wraps `torch._tensor_str._tensor_str`."""
    module = torch._tensor_str
    on_host = module._tensor_str

    def shown(tensor: Any, indent: int) -> Any:
        if tensor.device.type != "cuda" or tensor.layout is not torch.strided:
            return on_host(tensor, indent)
        options = module.PRINT_OPTS
        if tensor.numel() <= options.threshold:
            return on_host(tensor.detach().cpu(), indent)
        corners = _corners(torch, tensor.detach(), options.edgeitems).cpu()
        threshold = options.threshold
        options.threshold = 0  # the corners are few, but they stand for a tensor that is summarized
        try:
            return on_host(corners, indent)
        finally:
            options.threshold = threshold

    module._tensor_str = shown


def _corners(torch: Any, tensor: Any, edge: int) -> Any:
    """`tensor` with the middle of every long dimension cut down to the one item that makes torch
    write "..."; one operator per such dimension."""
    for dim, size in enumerate(tensor.shape):
        if size > 2 * edge + 1:
            ends = (tensor.narrow(dim, 0, edge + 1), tensor.narrow(dim, size - edge, edge))
            tensor = torch.cat(ends, dim)
    return tensor
