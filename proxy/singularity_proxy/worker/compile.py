"""torch.compile for the proxied device: captured here, compiled in the device proxy.

Applied by `hook` after `torch._inductor` or the list of dynamo's backends was imported. Inductor's
front half (`compile_fx`: AOTAutograd, decompositions, joint-graph passes, partitioner) runs in the
worker as ever; where it would generate code, the graph is sent to the proxy instead, whose inductor
does the other half. A call of the graph is then one record. What cannot be sent runs operator by
operator, after one warning that says why. Graphs without a proxied tensor are left to inductor.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from singularity_proxy.wire import graphs

from .native import native

BACKEND = "singularity"

_FRONT = {
    "triton.cudagraphs": False,  # a graph call is one record already
    "cpp_wrapper": False,
    "freezing": False,
    "shape_padding": False,  # would measure kernels in this process
    "compile_threads": 1,  # nothing is compiled in this process
}
"""Inductor's settings for its front half."""

_warned: set[str] = set()
_inside = threading.local()


def apply(module: Any) -> None:
    """Called by `hook` after `module` was executed."""
    {
        "torch._inductor.config": _no_helper_processes,
        "torch._inductor.compile_fx": _take_over,
        "torch._dynamo.backends.registry": _register,
    }[module.__name__](module)


def _no_helper_processes(_: Any) -> None:
    os.environ.setdefault("TORCH_WARM_POOL", "0")


def _register(registry: Any) -> None:
    registry.register_backend(name=BACKEND)(backend)


def backend(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """`torch.compile(backend="singularity")`: the same as the default one."""
    import torch._inductor
    from torch._inductor import compile_fx

    patches: dict[str, Any] = {}
    if mode and mode != "default":
        patches.update(torch._inductor.list_mode_options(mode))
    patches.update(options or {})
    return compile_fx.compile_fx(gm, example_inputs, config_patches=patches or None)


def _take_over(module: Any) -> None:
    compile_fx = module.compile_fx

    @functools.wraps(compile_fx)
    def compile_here_or_there(
        model: Any,
        example_inputs: Sequence[Any],
        inner_compile: Any = module.compile_fx_inner,
        config_patches: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        # With settings to patch, compile_fx calls itself by its name in the module.
        if getattr(_inside, "compile_fx", False) or not _is_proxied(model, example_inputs):
            return compile_fx(model, example_inputs, inner_compile, config_patches, **kwargs)
        import torch._functorch.config
        from torch._inductor.virtualized import V

        if getattr(V, "aot_compilation", False) is True:
            raise RuntimeError(
                "AOTInductor makes a library for a device inside this process, which a session "
                "never has: use torch.compile, or compile ahead for the host"
            )
        patches = {**(config_patches or {}), **_FRONT}
        _inside.compile_fx = True
        try:
            # What a cache of AOTAutograd would keep are this process's handles.
            with torch._functorch.config.patch(enable_autograd_cache=False):
                inner = functools.partial(_inner, inner_compile)
                return compile_fx(model, example_inputs, inner, patches, **kwargs)
        finally:
            _inside.compile_fx = False

    module.compile_fx = compile_here_or_there


def _is_proxied(model: Any, example_inputs: Sequence[Any]) -> bool:
    import torch

    from .capture import devices_of

    for value in example_inputs:
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            return True
    return isinstance(model, torch.fx.GraphModule) and "cuda" in devices_of(model)


def _inner(original: Any, gm: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """In the place of `compile_fx_inner`: -> a boxed callable."""
    import torch

    from . import capture

    if "cuda" not in capture.devices_of(gm):
        return original(gm, example_inputs, **kwargs)
    if not any(node.op == "call_function" for node in gm.graph.nodes):
        return _operators(gm)
    from torch._inductor import config

    try:
        with torch.utils._python_dispatch._disable_current_modes():
            captured = capture.capture(
                gm,
                static=[int(i) for i in kwargs.get("static_input_idxs") or ()],
                backward=bool(kwargs.get("is_backward")),
                inference=bool(kwargs.get("is_inference")),
                options={
                    name: value
                    for name in graphs.OPTIONS
                    if isinstance(value := getattr(config, name, None), bool)
                },
            )
            graph = native.add_graph(captured.packed, captured.inputs + 1, captured.device)
            answer = json.loads(native.compile_graph(graph))
            _take_guards(captured, answer["guards"])
    except capture.CannotCapture as error:
        _warn(f"runs operator by operator, because {error}")
        return _operators(gm)
    except (RuntimeError, ValueError) as error:
        _warn(f"runs operator by operator, because the device proxy refused it ({error})")
        return _operators(gm)
    if answer["mode"] != "inductor":
        _warn(
            "runs operator by operator in the device proxy, because it cannot be compiled there "
            f"({answer['reason']})"
        )
    _report_strides(captured, answer["strides"])
    return _caller(graph, captured, graphs.form_of(answer))


def _take_guards(captured: Any, guards: str) -> None:
    """What the proxy's compiler assumed about sizes becomes a condition of this graph, as it does
    when the compiler is in this process; other sizes then make dynamo compile anew."""
    if not guards or not captured.symbols:
        return
    env = captured.symbols[0].node.shape_env
    if not env.evaluate_guards_expression(guards, captured.symbols):
        raise ValueError("its sizes do not meet the conditions that it was compiled for")


def _report_strides(captured: Any, strides: list[list[int] | None] | None) -> None:
    """The strides that compiled code gives its results: the backward graph is traced for them."""
    import torch

    context = torch._guards.TracingContext.try_get()
    if context is None or context.output_strides is None or strides is None:
        return
    for kind, which in captured.outputs:
        found = strides[which] if kind == "result" else None
        context.output_strides.append(None if found is None else tuple(found))


def _caller(graph: int, captured: Any, form: int) -> Callable[[list[Any]], list[Any]]:
    call = native.call_graph
    constants, outputs = [*captured.constants, form], captured.outputs
    plain = all(output == ("result", k) for k, output in enumerate(outputs))

    def run(arguments: list[Any]) -> list[Any]:
        kept = [arguments[k] if kind == "argument" else None for kind, k in outputs]
        arguments.extend(constants)
        results = call(graph, arguments)
        return [
            results[k] if kind == "result" else given if kind == "argument" else k
            for (kind, k), given in zip(outputs, kept, strict=True)
        ]

    def run_plain(arguments: list[Any]) -> list[Any]:
        arguments.extend(constants)
        results: list[Any] = call(graph, arguments)
        return results

    chosen = run_plain if plain else run
    chosen._boxed_call = True  # type: ignore[attr-defined]
    return chosen


def _operators(gm: Any) -> Callable[[list[Any]], Any]:
    """Runs the traced graph as it stands; its operators are shipped one by one."""

    def run(arguments: list[Any]) -> Any:
        taken = list(arguments)
        arguments.clear()
        return gm(*taken)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _warn(what: str) -> None:
    if what not in _warned:
        _warned.add(what)
        warnings.warn(f"torch.compile: a graph {what}; its results are right", stacklevel=2)
