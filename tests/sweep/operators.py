"""The operators of torch's own test tables, their samples, and the ways one is called."""

from __future__ import annotations

import random
import sys
import types
import unittest
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "bool": torch.bool,
    "complex64": torch.complex64,
}
ERRORS = "errors"
"""In the place of a dtype: the inputs that an operator must refuse."""

UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
}
"""Their values mean nothing."""


HOST_ARGUMENTS = {"tensor_split"}
"""Their tensor arguments other than the input stay on the host, as they must on CUDA."""


def _without_expecttest() -> None:
    """torch's test helpers derive from a package that only rewrites expected strings."""
    try:
        import expecttest  # noqa: F401
    except ModuleNotFoundError:
        module = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        module.ACCEPT = False  # type: ignore[attr-defined]
        sys.modules["expecttest"] = module


def operators() -> dict[str, Any]:
    """Name -> OpInfo: torch's `op_db` and its tables of list operators."""
    _without_expecttest()
    from torch.testing._internal import common_methods_invocations as tables

    found: dict[str, Any] = {}
    for table in (
        tables.op_db,
        tables.foreach_unary_op_db,
        tables.foreach_binary_op_db,
        tables.foreach_pointwise_op_db,
        tables.foreach_reduce_op_db,
        tables.foreach_other_op_db,
    ):
        for op in table:
            found.setdefault(op.full_name, op)
    return found


def dtypes_of(op: Any) -> list[str]:
    supported = op.supported_dtypes("cpu")
    names = [name for name, dtype in DTYPES.items() if dtype in supported]
    return [*names, ERRORS] if op.error_inputs_func is not None else names


def _seed(text: str) -> None:
    number = zlib.crc32(text.encode())
    random.seed(number)
    torch.manual_seed(number)
    try:
        import numpy
    except ModuleNotFoundError:
        return
    numpy.random.seed(number)


def samples(op: Any, dtype: str, limit: int | None) -> list[Any]:
    """The first `limit` samples on the host, the same ones at every call."""
    _seed(f"{op.full_name}/{dtype}")
    if dtype == ERRORS:
        return [e.sample_input for e in islice(op.error_inputs("cpu"), limit)]
    kind = DTYPES[dtype]
    gradient = op.supports_autograd and kind in op.supported_backward_dtypes("cpu")
    found: Iterator[Any] = iter(op.sample_inputs("cpu", kind, requires_grad=gradient))
    return list(islice(found, limit))


def calls(op: Any) -> dict[str, Callable[..., Any]]:
    """The ways an operator is called: way -> function of (input, *args, **kwargs)."""
    ways: dict[str, Callable[..., Any]] = {"function": op}
    if op.method_variant is not None and op.method_variant is not op.op:
        ways["method"] = op.method_variant
    for name, function in (
        ("in place", op.inplace_variant),
        ("operator", op.operator_variant),
        ("operator in place", op.inplace_operator_variant),
    ):
        if function is not None:
            ways[name] = function
    return ways
