"""What one call did, and how two such outcomes differ. Pure: nothing here touches a device."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Value:
    """One result: a tensor's data on the host and its metadata, or another object."""

    kind: str
    data: Any = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    flags: str = ""
    shares: int = -1
    """Index of the argument whose memory it is in, -1 for none."""


@dataclass
class Outcome:
    """What a call left: an error, or results, and its arguments where they may have changed."""

    error: str = ""
    text: str = ""
    values: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    skipped: bool = False


def value_of(thing: Any, arguments: list[torch.Tensor]) -> Value:
    if not isinstance(thing, torch.Tensor):
        if isinstance(thing, (torch.dtype, torch.Size, int, float, bool, complex, str, type(None))):
            return Value("object", repr(thing))
        return Value("object", type(thing).__name__)
    thing = thing.detach()
    if thing.layout != torch.strided or thing.is_quantized or thing.is_nested:
        return Value(str(thing.layout), thing.cpu(), str(thing.dtype), tuple(thing.shape))
    storage = thing.untyped_storage()._cdata
    shares = [
        i
        for i, a in enumerate(arguments)
        if a.layout == torch.strided
        and not a.is_nested
        and a.numel()
        and a.untyped_storage()._cdata == storage
    ]
    return Value(
        "tensor",
        thing.cpu(),
        str(thing.dtype),
        tuple(thing.shape),
        tuple(thing.stride()),
        ("conj " if thing.is_conj() else "") + ("neg" if thing.is_neg() else ""),
        shares[0] if shares and thing.numel() else -1,
    )


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, because the values of a sparse tensor cannot be viewed as real numbers."""
    tensor = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal values; every NaN is equal to every other one, and -0.0 is not 0.0."""
    if a.numel() == 0:
        return True
    if a.layout != torch.strided:
        return _same_sparse(a, b)
    if a.is_quantized:
        return torch.equal(a, b)
    if a.is_nested:
        return all(same_bits(x, y) for x, y in zip(a.unbind(), b.unbind(), strict=True))
    left, right = (_real(t).reshape(-1) for t in (a, b))
    if torch.equal(left.view(torch.uint8), right.view(torch.uint8)):
        return True
    if not left.is_floating_point():
        return False
    equal = (left == right) & (left.signbit() == right.signbit())
    return bool((equal | (left.isnan() & right.isnan())).all())


def _same_sparse(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout == torch.sparse_coo:
        if a.is_coalesced() != b.is_coalesced():
            return False
        parts = [(t._indices(), t._values()) for t in (a, b)]
    elif a.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [(t.crow_indices(), t.col_indices(), t.values()) for t in (a, b)]  # type: ignore[misc]
    else:
        parts = [(t.ccol_indices(), t.row_indices(), t.values()) for t in (a, b)]  # type: ignore[misc]
    return all(
        x.shape == y.shape and x.dtype == y.dtype and same_bits(x, y)
        for x, y in zip(*parts, strict=True)
    )


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(a, b, equal_nan=True)
    except (AssertionError, RuntimeError):  # it does not know every layout
        return False
    return True


def _difference(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.layout != torch.strided or a.is_nested or a.is_quantized:
        return "values differ"
    try:
        worst = (a.to(torch.complex128) - b.to(torch.complex128)).abs().nan_to_num(float("inf"))
        return f"values differ by up to {worst.max().item():.1e}"
    except RuntimeError:
        return "values differ"


def _differs(a: Value, b: Value, values: bool) -> str:
    if a.kind != b.kind:
        return f"kind: {a.kind} / {b.kind}"
    if a.kind == "object":
        return "" if a.data == b.data or not values else f"object: {a.data} / {b.data}"
    for name in ("dtype", "shape", "strides", "flags", "shares"):
        if getattr(a, name) != getattr(b, name):
            return f"{name}: {getattr(a, name)} / {getattr(b, name)}"
    if values and not same_bits(a.data, b.data):
        return _difference(a.data, b.data)
    return ""


def differs(native: Outcome, proxied: Outcome, values: bool = True) -> str:
    """Empty when equal, else one line: what, native / proxied. `values=False`: metadata only."""
    if native.error or proxied.error:
        if native.error == proxied.error:
            return ""
        if not native.error:
            return f"error: {proxied.error}: {proxied.text}"
        other = f"{proxied.error}: {proxied.text}" if proxied.error else "no error"
        return f"error type: {native.error}: {native.text} / {other}"
    for what, left, right in (
        ("", native.values, proxied.values),
        ("argument ", native.inputs, proxied.inputs),
    ):
        if len(left) != len(right):
            return f"count: {len(left)} / {len(right)}"
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            if reason := _differs(a, b, values):
                return f"{what}{reason} (number {i})" if len(left) > 1 else what + reason
    return ""


def close(native: Outcome, proxied: Outcome) -> bool:
    """Whether the values agree within torch.testing's usual tolerance."""
    pairs = [
        *zip(native.values, proxied.values, strict=False),
        *zip(native.inputs, proxied.inputs, strict=False),
    ]
    return all(_close(a.data, b.data) for a, b in pairs if isinstance(a.data, torch.Tensor))


def same_text(native: Outcome, proxied: Outcome) -> bool:
    """Whether two errors read alike, apart from the name of the device."""

    def plain(text: str) -> str:
        return re.sub(r"\b(cpu|cuda(:0)?)\b", "device", text, flags=re.IGNORECASE)

    return plain(native.text) == plain(proxied.text)
