"""A captured graph as it travels from a worker to its device proxy: bytes, and what may be in them.

`worker.capture` writes it, `device.graphs` reads it; torch is imported by neither side of this
module. It is one compressed JSON object:

    symbols   [[name, value at capture, least, largest or null], ...]: sizes that may change
    inputs    [["t", dtype, sizes, strides, first element, place] or ["i", expression], ...]
    nodes     [[target, arguments, keyword arguments], ...]; value k is the k-th input or, after
              them, the k-th node
    outputs   numbers of values
    static    inputs that keep their memory over calls (parameters)
    visible   outputs whose strides the user sees
    backward, inference, options

An *expression* is a number, a symbol's name or `[operator, operand, ...]`. A place is 0 for the
proxied device and 1 for the host. Arguments are JSON; what JSON has not is a one-key object:
`{"n": value}`, `{"e": expression}`, `{"d": dtype}`, `{"m": memory format}`, `{"l": layout}`,
`{"v": place}`, `{"c": [real, imaginary]}`.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

NAME = "singularity::graph"
"""The operator name under which a graph is defined; its overload is the packed graph."""

MAX_PACKED_BYTES = 2_000_000
"""Fits one record (see records.h: kMaxRecordBytes)."""

_MAX_TEXT_BYTES = 256 << 20

FUNCTIONS = frozenset(
    [
        *(f"operator.{name}" for name in ("getitem", "add", "sub", "mul", "floordiv", "mod")),
        *(f"operator.{name}" for name in ("neg", "truediv", "pow", "eq", "ne", "lt", "le")),
        *(f"operator.{name}" for name in ("gt", "ge", "and_", "or_")),
        *(f"math.{name}" for name in ("ceil", "floor", "trunc")),
        *(f"torch.sym_{name}" for name in ("int", "float", "max", "min", "not", "ite", "sum")),
    ]
)
"""What a node may call besides operators of the dispatcher ("op.NAMESPACE.NAME.OVERLOAD")."""

OPTIONS = (
    "max_autotune",
    "max_autotune_pointwise",
    "max_autotune_gemm",
    "coordinate_descent_tuning",
    "epilogue_fusion",
    "fallback_random",
    "emulate_precision_casts",
    "layout_optimization",
    "comprehensive_padding",
    "keep_output_stride",
    "split_reductions",
    "benchmark_fusion",
    "deterministic",
)
"""Switches of `torch._inductor.config` that the worker's user may set for the device proxy."""


def form_of(answer: dict[str, Any]) -> int:
    """What a graph was compiled to, as a number: worker and device proxy agree on its results only
    while it stays the same. Both take it from the answer to `compile`; it goes with every call."""
    form = json.dumps([answer["mode"], answer["guards"], answer["strides"]])
    return zlib.crc32(form.encode())


def pack(graph: dict[str, Any]) -> bytes:
    """The bytes of `graph`; equal graphs give equal bytes."""
    text = json.dumps(graph, separators=(",", ":"), sort_keys=True)
    return zlib.compress(text.encode(), 6)


def unpack(packed: bytes) -> dict[str, Any]:
    """Raises ValueError for what `pack` did not write, or would be unreasonably large."""
    try:
        text = zlib.decompressobj().decompress(packed, _MAX_TEXT_BYTES)
        graph = json.loads(text)
    except (zlib.error, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"a captured graph cannot be read: {error}") from error
    if not isinstance(graph, dict):
        raise ValueError("a captured graph cannot be read: it is no object")
    return graph
