"""Fresh copies of a sample's arguments on a device, with the same strides, offsets and sharing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to every leaf of its lists, tuples and dicts."""
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        items = [mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return change(value)


def leaves(value: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dicts, in order."""
    found: list[Any] = []
    mapped(value, found.append)
    return found


class Copier:
    """Copies tensors to `device`. Two that share memory in the original share it in the copy."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._storages: dict[int, torch.Tensor] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._tensors:
                self._kept.append(value)  # its id stays its own
                self._tensors[id(value)] = self._copy(value)
            return self._tensors[id(value)]
        if isinstance(value, torch.device) and value.type == "cpu":
            return torch.device(self.device)
        if isinstance(value, str) and value == "cpu":
            return self.device
        if isinstance(value, torch.Generator) and value.device.type == "cpu":
            return torch.Generator(self.device).manual_seed(value.initial_seed())
        return value

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not plain or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            copy = tensor.detach().to(self.device, copy=True)
        else:
            with torch.no_grad():
                copy = self._strided(tensor.detach())
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
        return copy.requires_grad_(tensor.requires_grad)

    def _strided(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            raw = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._kept.append(raw)
            self._storages[storage._cdata] = raw.to(self.device, copy=True)
        copied = self._storages[storage._cdata].untyped_storage()
        out = torch.empty(0, dtype=tensor.dtype, device=self.device)
        out.set_(copied, tensor.storage_offset(), tensor.size(), tensor.stride())
        if tensor.is_conj():
            out = out.conj()
        return torch._neg_view(out) if tensor.is_neg() else out
