"""From a graph that torch.compile has traced in the worker to what the device proxy compiles.

`capture` only looks at the graph and its fake tensors; nothing runs. Used by `compile`.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any

import torch

from singularity_proxy.wire import graphs

MAX_HOST_INPUT_BYTES = 64 << 10
"""A larger host tensor would be sent again at every call."""

COMMUNICATION = ("c10d", "_c10d_functional", "_c10d_functional_autograd")

_MODULES: dict[str, Any] = {"operator": operator, "math": math, "torch": torch}


def _function(name: str) -> Any:
    module, _, attribute = name.partition(".")
    return getattr(_MODULES[module], attribute, None)


_FUNCTIONS: dict[Any, str] = {
    found: name for name in sorted(graphs.FUNCTIONS) if (found := _function(name)) is not None
}

_BY_CLASS = {
    "Add": "+",
    "Mul": "*",
    "FloorDiv": "//",
    "CleanDiv": "//",
    "Mod": "%",
    "PythonMod": "%",
    "Max": "max",
    "Min": "min",
}


class CannotCapture(Exception):
    """Says, as the end of a sentence after "because", why a graph cannot run in the proxy."""


@dataclass
class Captured:
    """A graph ready to be sent, and how to put a call of it together."""

    packed: bytes
    device: int
    """Virtual device that it runs on."""
    inputs: int
    constants: list[torch.Tensor]
    """Tensors of the graph itself; they follow the arguments at every call."""
    outputs: list[tuple[str, Any]]
    """Per output of the traced graph: ("result", k-th result), ("argument", k-th argument) or
    ("constant", value)."""
    symbols: list[Any] = field(default_factory=list)
    """SymInts of the sizes that may change, in the order of the graph's symbols."""


def capture(
    gm: torch.fx.GraphModule,
    *,
    static: list[int],
    backward: bool,
    inference: bool,
    options: dict[str, bool],
) -> Captured:
    """Raises CannotCapture. `gm` is functional ATen with fake tensors in `node.meta["val"]`, as
    AOTAutograd hands it to a compiler."""
    writer = _Writer(gm)
    nodes = list(gm.graph.nodes)
    output = nodes[-1]
    numbers: dict[torch.fx.Node, int] = {}
    inputs: list[Any] = []
    constants: list[torch.Tensor] = []
    arguments: dict[torch.fx.Node, int] = {}
    for node in nodes:
        if node.op == "placeholder":
            arguments[node] = numbers[node] = len(inputs)
            inputs.append(writer.input(node.meta.get("val"), node.name))
    for node in nodes:
        if node.op == "get_attr":
            value = _attribute(gm, str(node.target))
            numbers[node] = len(inputs)
            inputs.append(writer.input(value, node.name))
            constants.append(value)
    calls: list[Any] = []
    for node in nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if node.op != "call_function":
            raise CannotCapture(f"it has a node of kind {node.op}")
        calls.append(writer.call(node, numbers))
        numbers[node] = len(inputs) + len(calls) - 1
    wanted: list[int] = []
    outputs: list[tuple[str, Any]] = []
    visible: list[int] = []
    seen = set(output.meta.get("user_visible_output_idxs", ()))
    for position, value in enumerate(output.args[0]):
        if not isinstance(value, torch.fx.Node):
            if isinstance(value, torch.SymInt):
                raise CannotCapture("it returns a size that no node of it computes")
            outputs.append(("constant", value))
        elif value in arguments:
            outputs.append(("argument", arguments[value]))
        else:
            writer.result(value)
            if position in seen:
                visible.append(len(wanted))
            outputs.append(("result", len(wanted)))
            wanted.append(numbers[value])
    if len(writer.devices) != 1:
        found = ", ".join(f"cuda:{index}" for index in sorted(writer.devices)) or "no device"
        raise CannotCapture(f"it uses {found} and a graph runs on exactly one")
    symbols = list(writer.symbols.items())
    packed = graphs.pack(
        {
            "symbols": [writer.symbol(name, s) for name, s in symbols],
            "inputs": inputs,
            "nodes": calls,
            "outputs": wanted,
            "static": [i for i in static if i < len(arguments)]
            + list(range(len(arguments), len(inputs))),
            "visible": visible,
            "backward": backward,
            "inference": inference,
            "options": options,
        }
    )
    if len(packed) > graphs.MAX_PACKED_BYTES:
        raise CannotCapture(
            f"its description takes {len(packed)} bytes, more than fit one record; compile a "
            "smaller part"
        )
    return Captured(
        packed,
        next(iter(writer.devices)),
        len(inputs),
        constants,
        outputs,
        [writer.symint(s) for _, s in symbols],
    )


class _Writer:
    """Turns nodes and fake values into JSON, and collects what the graph as a whole needs."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self.devices: set[int] = set()
        self.symbols: dict[str, Any] = {}
        self._shape_env: Any = None

    # ---- sizes

    def expression(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            node = value.node
            if node.shape_env is not None:
                self._shape_env = node.shape_env
            return self._expression(node.expr)
        return int(value)

    def _expression(self, expr: Any) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            name = str(expr)
            if name.startswith("u") or not hasattr(self._shape_env, "var_to_range"):
                raise CannotCapture("a size in it depends on the values of a tensor")
            self.symbols[name] = expr
            return name
        kind = type(expr).__name__
        if kind in _BY_CLASS:
            return [_BY_CLASS[kind], *(self._expression(a) for a in expr.args)]
        if kind == "Pow" and expr.args[1].is_Integer and 1 <= int(expr.args[1]) <= 8:
            return ["*", *([self._expression(expr.args[0])] * int(expr.args[1]))]
        raise CannotCapture(f"a size in it is {expr}, which cannot be sent")

    def symint(self, symbol: Any) -> Any:
        return self._shape_env.create_symintnode(symbol, hint=self._hint(symbol))

    def _hint(self, symbol: Any) -> int:
        env = self._shape_env
        values = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
        if symbol not in values:
            raise CannotCapture("a size in it depends on the values of a tensor")
        return int(values[symbol])

    def symbol(self, name: str, symbol: Any) -> list[Any]:
        bounds = self._shape_env.var_to_range[symbol]
        largest = int(bounds.upper) if getattr(bounds.upper, "is_Integer", False) else None
        least = int(bounds.lower) if getattr(bounds.lower, "is_Integer", False) else 0
        return [name, self._hint(symbol), least, largest]

    # ---- values

    def place(self, device: torch.device) -> int:
        if device.type == "cuda":
            if device.index is not None:
                self.devices.add(device.index)
            return 0
        if device.type == "cpu":
            return 1
        raise CannotCapture(f"it uses device {device}")

    def input(self, value: Any, name: str) -> list[Any]:
        if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            return ["i", self.expression(value)]
        if not isinstance(value, torch.Tensor):
            raise CannotCapture(f"its input {name} is a {type(value).__name__}")
        if value.layout != torch.strided or value.is_quantized:
            raise CannotCapture(f"its input {name} is not a strided tensor")
        if value.is_conj() or value.is_neg():
            raise CannotCapture(f"its input {name} is a lazy conjugate or negation")
        place = self.place(value.device)
        sizes = [self.expression(s) for s in value.shape]
        if place == 1:
            if any(not isinstance(s, int) for s in sizes):
                raise CannotCapture(f"its input {name} is a host tensor of changing size")
            if value.numel() * value.element_size() > MAX_HOST_INPUT_BYTES:
                raise CannotCapture(
                    f"its input {name} is a large tensor on the host; move it to the device first"
                )
        # Where in its memory it begins matters for alignment only, and changing sizes are never
        # of a tensor that keeps its memory.
        first = value.storage_offset()
        strides = [self.expression(s) for s in value.stride()]
        return [
            *("t", _name(value.dtype), sizes, strides),
            first if isinstance(first, int) and all(isinstance(s, int) for s in sizes) else 0,
            place,
        ]

    def call(self, node: torch.fx.Node, numbers: dict[torch.fx.Node, int]) -> list[Any]:
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            if target.namespace in COMMUNICATION:
                raise CannotCapture("a collective in it is issued by the rank itself")
            name = f"op.{target.namespace}.{target._opname}.{target._overloadname}"
        elif target in _FUNCTIONS:
            name = _FUNCTIONS[target]
        else:
            raise CannotCapture(f"it calls {getattr(target, '__name__', target)}")
        on_host = False
        for value in _tensors(node.meta.get("val")):
            if value.layout != torch.strided:
                raise CannotCapture(f"{name[3:]} gives a tensor that is not strided")
            on_host = self.place(value.device) == 1 or on_host
        if on_host and isinstance(target, torch._ops.OpOverload):
            if torch.Tag.nondeterministic_seeded in target.tags:
                raise CannotCapture(f"{name[3:]} in it draws random numbers on the host")
            if target._schema.is_mutable:
                raise CannotCapture(f"{name[3:]} in it changes a tensor on the host")
        encode = self._argument
        return [
            name,
            [encode(a, numbers) for a in node.args],
            {key: encode(a, numbers) for key, a in node.kwargs.items()},
        ]

    def result(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            if self.place(value.device) == 1:
                raise CannotCapture("it returns a tensor on the host")
        elif not isinstance(value, (torch.SymInt, int)):
            raise CannotCapture(f"it returns a {type(value).__name__}")

    def _argument(self, value: Any, numbers: dict[torch.fx.Node, int]) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.fx.Node):
            return {"n": numbers[value]}
        if isinstance(value, (list, tuple)):
            return [self._argument(v, numbers) for v in value]
        if isinstance(value, torch.SymInt):
            return {"e": self.expression(value)}
        if isinstance(value, torch.dtype):
            return {"d": _name(value)}
        if isinstance(value, torch.memory_format):
            return {"m": _name(value)}
        if isinstance(value, torch.layout):
            return {"l": _name(value)}
        if isinstance(value, torch.device):
            return {"v": self.place(value)}
        if isinstance(value, complex):
            return {"c": [value.real, value.imag]}
        raise CannotCapture(f"an argument in it is a {type(value).__name__}")


def devices_of(gm: torch.fx.GraphModule) -> set[str]:
    """Device types that appear in the graph's values and arguments."""
    found: set[str] = set()
    for node in gm.graph.nodes:
        for key in ("val", "example_value"):
            found.update(t.device.type for t in _tensors(node.meta.get(key)))
        for value in (*node.args, *node.kwargs.values()):
            if isinstance(value, torch.device):
                found.add(value.type)
    return found


def _attribute(gm: torch.fx.GraphModule, path: str) -> torch.Tensor:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise CannotCapture("it calls a function that has a graph of its own")
    return value


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in _tensors(item)]
    return []


def _name(value: Any) -> str:
    return str(value).rpartition(".")[2]
