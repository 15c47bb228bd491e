"""Graphs that torch.compile captured in a worker: rebuilt, compiled by inductor and run here.

The ring's thread (src/graphs.cpp) makes a `Graph` of what a worker has defined, asks it to compile,
checks the arguments of a call that differs from all earlier ones, and then only calls it. What a
graph compiles to depends on the graph alone, so a proxy that rebuilds a state computes the same.
Where inductor cannot compile, the graph runs operator by operator.

The worker is not trusted: only operators and the functions in `wire.graphs` can be called, names
and source text are made here, and a call whose arguments do not fit the graph is refused before
compiled code reads a byte.
"""

from __future__ import annotations

import importlib
import json
import math
import operator
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from singularity_proxy.wire import graphs as wire

from . import compiled_files

_MODULES: dict[str, Any] = {"operator": operator, "math": math, "torch": torch}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": torch.sym_max,
    "min": torch.sym_min,
}
_compiling = threading.Lock()
"""Inductor's settings belong to the process, so rings take turns."""


class Graph:
    """One captured graph. Used by one ring's thread; raises ValueError for a malformed graph."""

    def __init__(self, packed: bytes, device: str) -> None:
        self._device = torch.device(device)
        try:
            self._read(wire.unpack(packed))
        except (AttributeError, IndexError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"a captured graph cannot be read: {_sentence(error)}") from error
        self._call: Callable[[list[Any]], Sequence[Any]] | None = None
        self._guards = ""
        self._answer = ""

    def _read(self, graph: dict[str, Any]) -> None:
        self._static = [int(i) for i in graph["static"]]
        self._visible = [int(i) for i in graph["visible"]]
        self._backward, self._inference = bool(graph["backward"]), bool(graph["inference"])
        self._options = {str(k): bool(v) for k, v in graph["options"].items() if k in wire.OPTIONS}
        self._symbols = [(str(n), int(v), int(a), b) for n, v, a, b in graph["symbols"]]
        self._specs = [list(spec) for spec in graph["inputs"]]
        self._module = self._rebuild(graph)
        self.inputs = len(self._specs)
        self.draws = any(
            torch.Tag.nondeterministic_seeded in node.target.tags
            for node in self._module.graph.nodes
            if isinstance(node.target, torch._ops.OpOverload)
        )
        """Whether it draws from the default generator."""
        self.writes = _written(self._module.graph)
        """By input, whether the graph writes into its memory."""

    # ---- what the ring's thread calls

    def compile(self) -> str:
        """Compiles it, once. -> JSON for the worker: {mode: "inductor" or "operators", reason,
        guards, strides}."""
        if self._call is None:
            reason, strides = "", None
            try:
                self._call, strides = self._by_inductor()
            except Exception as error:
                self._call = self._by_operators
                self._guards = ""
                reason = _sentence(error)
            mode = "operators" if reason else "inductor"
            self._answer = json.dumps(
                {"mode": mode, "reason": reason, "guards": self._guards, "strides": strides}
            )
        return self._answer

    def has_form(self, form: int) -> bool:
        """Whether it compiles to what the worker was told: it knows how the results look from
        then."""
        return form == wire.form_of(json.loads(self._answer))

    def check(self, arguments: list[Any]) -> None:
        """Raises ValueError when compiled code must not see `arguments`. Strides need no look:
        compiled code compares them itself."""
        if len(arguments) != len(self._specs):
            raise ValueError(f"a graph of {len(self._specs)} inputs got {len(arguments)}")
        values: dict[str, int] = {}
        for spec, argument in zip(self._specs, arguments, strict=True):
            for expression, actual in self._pairs(spec, argument):
                if isinstance(expression, str):
                    values.setdefault(expression, actual)
        for number, (spec, argument) in enumerate(zip(self._specs, arguments, strict=True)):
            for expression, actual in self._pairs(spec, argument):
                if _evaluate(expression, values) != actual:
                    raise ValueError(f"a graph got input {number} of another size than it says")
        if not self._guards:
            return
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        sizes = [values[name] for name, *_ in self._symbols]
        if not ShapeEnv().evaluate_guards_expression(self._guards, sizes):
            raise ValueError(f"a graph was called with sizes that it was not compiled for: {sizes}")

    def _pairs(self, spec: list[Any], argument: Any) -> list[tuple[Any, int]]:
        """(expression, what it is in this call) of one input; raises when the kinds differ."""
        if spec[0] == "i":
            if type(argument) is not int:
                raise ValueError("a graph got something else where it takes a size")
            return [(spec[1], argument)]
        if not isinstance(argument, torch.Tensor) or argument.dtype is not getattr(torch, spec[1]):
            raise ValueError(f"a graph got something else where it takes a tensor of {spec[1]}")
        place = "cpu" if spec[5] else self._device.type
        if argument.layout is not torch.strided or argument.device.type != place:
            raise ValueError("a graph got a tensor of another place or layout than it takes")
        if argument.dim() != len(spec[2]):
            raise ValueError("a graph got a tensor of another number of dimensions")
        return list(zip(spec[2], argument.shape, strict=True))

    def run(self, arguments: list[Any]) -> Sequence[Any]:
        """Executes it; takes the arguments out of their list."""
        assert self._call is not None
        return self._call(arguments)

    # ---- how

    def _by_operators(self, arguments: list[Any]) -> Sequence[Any]:
        taken = list(arguments)
        arguments.clear()
        result: Sequence[Any] = self._module(*taken)
        return result

    def _rebuild(self, graph: dict[str, Any]) -> torch.fx.GraphModule:
        built = torch.fx.Graph()
        values = [built.placeholder(f"input_{i}") for i in range(len(self._specs))]
        for target, args, kwargs in graph["nodes"]:
            if not all(key.isidentifier() for key in kwargs):  # they become source text
                raise ValueError(f"a captured graph calls {target} with an unknown argument")
            values.append(
                built.call_function(
                    _target(target),
                    tuple(self._argument(a, values) for a in args),
                    {key: self._argument(a, values) for key, a in kwargs.items()},
                )
            )
        output = built.output(tuple(values[k] for k in graph["outputs"]))
        output.meta["user_visible_output_idxs"] = self._visible
        return torch.fx.GraphModule(torch.nn.Module(), built)

    def _argument(self, value: Any, values: list[torch.fx.Node]) -> Any:
        if isinstance(value, list):
            return [self._argument(v, values) for v in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "n":
            return values[content]
        if kind == "c":
            return complex(*content)
        if kind == "v":
            return torch.device("cpu") if content else self._device
        if kind == "e":
            return self._size(content, values)
        wanted = {"d": torch.dtype, "m": torch.memory_format, "l": torch.layout}.get(kind)
        found = getattr(torch, str(content), None)
        if wanted is None or not isinstance(found, wanted):
            raise ValueError(f"a captured graph has an unknown argument {value}")
        return found

    def _size(self, expression: Any, values: list[torch.fx.Node]) -> Any:
        """A size that is an argument itself: computed from the inputs that are sizes."""
        if isinstance(expression, int):
            return expression
        if isinstance(expression, str):
            for value, spec in zip(values, self._specs, strict=False):
                if spec == ["i", expression]:
                    return value
            raise ValueError(f"a captured graph does not tell the size {expression}")
        function = _ARITHMETIC[expression[0]]
        result = self._size(expression[1], values)
        for operand in expression[2:]:
            second = self._size(operand, values)
            if isinstance(result, int) and isinstance(second, int):
                result = function(result, second)
            else:
                result = values[0].graph.call_function(function, (result, second))
        return result

    def _by_inductor(
        self,
    ) -> tuple[Callable[[list[Any]], Sequence[Any]], list[list[int] | None] | None]:
        with _compiling, compiled_files.in_use():
            # Imported late: most sessions never compile, and it takes seconds.
            from torch._guards import TracingContext, tracing
            from torch._inductor import config
            from torch._inductor.compile_fx import compile_fx_inner
            from torch._subclasses.fake_tensor import FakeTensorMode
            from torch.fx.experimental.symbolic_shapes import ShapeEnv

            shape_env = ShapeEnv()
            mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
            context = TracingContext(mode)
            with torch.inference_mode(False), torch.no_grad(), tracing(context):
                symbols = self._make_symbols(shape_env)
                fakes = [self._fake(spec, mode, symbols) for spec in self._specs]
                context.output_strides = []
                with config.patch(self._settings(config, symbols)):
                    compiled = compile_fx_inner(
                        self._module,
                        fakes,
                        static_input_idxs=self._static,
                        is_backward=self._backward,
                        is_inference=self._inference,
                    )
                strides = [
                    None if s is None else [int(v) for v in s] for s in context.output_strides
                ]
                if symbols:
                    sizes = list(symbols.values())
                    self._guards = shape_env.produce_guards_expression(sizes) or ""
            _forget_modules()
        return compiled, strides or None

    def _make_symbols(self, shape_env: Any) -> dict[str, torch.SymInt]:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        made: dict[str, torch.SymInt] = {}
        for index, (name, value, least, largest) in enumerate(self._symbols):
            source = ConstantSource(f"size_{index}")
            symbol = shape_env.create_symbol(
                value, source, DimDynamic.DYNAMIC, do_not_specialize_zero_one=True
            )
            made[name] = size = shape_env.create_symintnode(symbol, hint=value, source=source)
            torch._check(size >= least)
            if largest is not None:
                torch._check(size <= int(largest))
        return made

    def _fake(self, spec: list[Any], mode: Any, symbols: dict[str, torch.SymInt]) -> Any:
        if spec[0] == "i":
            return _evaluate(spec[1], symbols)
        _, dtype, sizes, strides, first, place = spec
        sizes = [_evaluate(s, symbols) for s in sizes]
        strides = [_evaluate(s, symbols) for s in strides]
        options = {"dtype": getattr(torch, dtype), "device": "cpu" if place else self._device}
        with mode:
            if not first:
                return torch.empty_strided(sizes, strides, **options)
            reach = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
            return torch.empty(first + max(reach, 0), **options).as_strided(sizes, strides, first)

    def _settings(self, config: Any, symbols: dict[str, torch.SymInt]) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "triton.cudagraphs": False,
            "cpp_wrapper": False,
            "freezing": False,
            "compile_threads": 1,
            "cpp.threads": torch.get_num_threads(),
            "size_asserts": True,
            # Its key holds the sizes that are inputs themselves; it would forget guards on others.
            "fx_graph_cache": {e for k, e, *_ in self._specs if k == "i" and isinstance(e, str)}
            >= set(symbols),
            **self._options,
            # They are kept outside the folder of `compiled_files`, where other users may write.
            "cpp_cache_precompile_headers": False,
        }
        if compiler := compiled_files.compiler():
            settings["cpp.cxx"] = (compiler,)
        return {key: value for key, value in settings.items() if _has(config, key)}


def _forget_modules() -> None:
    """Inductor keeps each module that it has made until the process ends; a graph has what it needs
    of its own, and takes it along when it goes. (The machine code stays loaded.)"""
    from torch._inductor.codecache import PyCodeCache

    for module in PyCodeCache.modules:
        sys.modules.pop(module.__name__, None)
    PyCodeCache.cache_clear()
    PyCodeCache.linemaps.clear()


def _target(name: str) -> Callable[..., Any]:
    if name in wire.FUNCTIONS:
        module, _, attribute = name.partition(".")
        function: Callable[..., Any] = getattr(_MODULES[module], attribute)
        return function
    kind, _, path = name.partition(".")
    parts = path.split(".")
    if kind != "op" or len(parts) != 3:
        raise ValueError(f"a captured graph calls {name}, which is no operator")
    if parts[0] == "prims":
        for module in ("torch._prims", "torch._inductor.inductor_prims"):
            importlib.import_module(module)  # registers them
    try:
        found: Any = getattr(getattr(getattr(torch.ops, parts[0]), parts[1]), parts[2])
    except AttributeError:
        found = None
    if isinstance(found, torch._ops.OpOverload):
        operation: Callable[..., Any] = found
        return operation
    raise ValueError(
        f"{parts[0]}::{parts[1]} does not exist in the device proxy's PyTorch; its package may "
        "not be installed there"
    )


def _written(graph: torch.fx.Graph) -> list[bool]:
    """By input, whether an operator of the graph changes it or a view of it."""
    inputs: dict[torch.fx.Node, int] = {}
    roots: dict[torch.fx.Node, set[int]] = {}
    written: set[int] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            roots[node] = {inputs.setdefault(node, len(inputs))}
            continue
        of_all = set().union(*(roots.get(n, set()) for n in node.all_input_nodes))
        if not isinstance(node.target, torch._ops.OpOverload):
            roots[node] = of_all  # getitem and arithmetic of sizes: what goes in may come out
            continue
        schema = node.target._schema
        for place, argument in enumerate(schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            for one in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(one, torch.fx.Node):
                    written |= roots.get(one, set())
        # An operator without alias information gives new memory.
        roots[node] = of_all if any(r.alias_info for r in schema.returns) else set()
    return [i in written for i in range(len(inputs))]


def _evaluate(expression: Any, values: dict[str, Any]) -> Any:
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        if expression not in values:
            raise ValueError(f"a graph does not tell the size {expression}")
        return values[expression]
    function = _ARITHMETIC[expression[0]]
    result = _evaluate(expression[1], values)
    for operand in expression[2:]:
        result = function(result, _evaluate(operand, values))
    return result


def _has(config: Any, key: str) -> bool:
    """Whether this torch's inductor knows the setting."""
    try:
        for part in key.split("."):
            config = getattr(config, part)
    except AttributeError:
        return False
    return True


def _sentence(error: Exception) -> str:
    """The first line of an error, for people."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:500]
