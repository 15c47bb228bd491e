"""Runs tasks in a session's process: `python -m sweep.worker TASKS.json OUT.jsonl [samples]`.

A task is [operator, dtype]. Every sample runs on the host and on "cuda" in this one process; a line
of JSON is written before each task and after it, so that a crash is blamed on the right one.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .compare import Outcome, close, differs, same_text, value_of
from .inputs import Copier, leaves, mapped
from .operators import ERRORS, HOST_ARGUMENTS, UNINITIALISED, calls, operators, samples

SEED = 20
HANG_SECONDS = 120


def tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in leaves(value) if isinstance(x, torch.Tensor)]


class Call:
    """One way of calling one sample; run on a device it gives an `Outcome`."""

    def __init__(self, op: Any, sample: Any, way: str, function: Callable[..., Any]) -> None:
        self.op, self.sample, self.way, self.function = op, sample, way, function

    def on(self, device: str) -> Outcome:
        copy = Copier(device)
        try:
            others = Copier("cpu") if self.op.name in HOST_ARGUMENTS else copy
            arguments = [
                mapped(self.sample.input, copy),
                mapped(list(self.sample.args), others),
                mapped(self.sample.kwargs, others),
            ]
        except (RuntimeError, NotImplementedError, TypeError) as error:
            return failure(error)
        given = tensors(arguments)
        torch.manual_seed(SEED)
        try:
            values, watched = getattr(self, "_" + self.way.replace(" ", "_"))(arguments, given)
            return Outcome(
                values=[value_of(v, given) for v in leaves(values)],
                inputs=[value_of(v, given) for v in watched],
            )
        except Exception as error:
            return failure(error)

    def _call(self, arguments: list[Any], given: list[torch.Tensor]) -> tuple[Any, list[Any]]:
        return self.function(arguments[0], *arguments[1], **arguments[2]), []

    _function = _method = _operator = _call

    def _gradient(self, arguments: list[Any], given: list[torch.Tensor]) -> tuple[Any, list[Any]]:
        result = self.function(arguments[0], *arguments[1], **arguments[2])
        process = getattr(self.sample, "output_process_fn_grad", None)
        outputs = [t for t in tensors(process(result) if process else result) if t.requires_grad]
        inputs = [t for t in given if t.requires_grad]
        if not outputs or not inputs:
            return result, []
        ones = [torch.ones_like(t) for t in outputs]
        gradients = torch.autograd.grad(outputs, inputs, ones, allow_unused=True)
        return [result, list(gradients)], []

    def _in_place(self, arguments: list[Any], given: list[torch.Tensor]) -> tuple[Any, list[Any]]:
        with torch.no_grad():
            result = self.function(arguments[0], *arguments[1], **arguments[2])
        return result, given

    _operator_in_place = _in_place

    def _out(self, arguments: list[Any], given: list[torch.Tensor]) -> tuple[Any, list[Any]]:
        return self._into(arguments, lambda t: torch.empty(0, dtype=t.dtype, device=t.device))

    def _out_strided(
        self, arguments: list[Any], given: list[torch.Tensor]
    ) -> tuple[Any, list[Any]]:
        def strided(t: torch.Tensor) -> torch.Tensor:
            return t.new_zeros([2 * n for n in t.shape])[tuple(slice(0, None, 2) for _ in t.shape)]

        return self._into(arguments, strided)

    def _out_wrong(self, arguments: list[Any], given: list[torch.Tensor]) -> tuple[Any, list[Any]]:
        wrong = torch.long if tensors(arguments)[0].is_floating_point() else torch.bool
        return self._into(arguments, lambda t: torch.empty_like(t, dtype=wrong))

    def _into(
        self, arguments: list[Any], make: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[Any, list[Any]]:
        with torch.no_grad():
            expected = self.function(arguments[0], *arguments[1], **arguments[2])
            torch.manual_seed(SEED)
            out = mapped(expected, make)
            result = self.function(arguments[0], *arguments[1], **arguments[2], out=out)
        return [result, out], []


def failure(error: BaseException) -> Outcome:
    lines = str(error).strip().splitlines()
    return Outcome(error=type(error).__name__, text=lines[0][:300] if lines else "")


def ways_of(op: Any, sample: Any, index: int, dtype: str) -> dict[str, Callable[..., Any]]:
    ways = calls(op)
    if dtype == ERRORS:
        return {"function": ways["function"]}
    if any(t.requires_grad for t in tensors([sample.input, list(sample.args), sample.kwargs])):
        ways["gradient"] = ways["function"]
    if op.supports_out and "out" not in sample.kwargs:
        ways["out"] = ways["out strided"] = ways["function"]
        if index == 0:
            ways["out wrong"] = ways["function"]
    return ways


def check(op: Any, sample: Any, index: int, dtype: str) -> dict[str, str]:
    """Way of calling -> how it differed; nothing when all are equal. Also "text", informative."""
    wrong: dict[str, str] = {}
    initialised = op.name not in UNINITIALISED
    for way, function in ways_of(op, sample, index, dtype).items():
        call = Call(op, sample, way, function)
        native = call.on("cpu")
        for repeat in range(2 if way in ("function", "gradient") else 1):
            proxied = call.on("cuda")
            reason = differs(native, proxied, values=initialised)
            # Where memory lies decides the last bits of some vendor routines: not a difference when
            # the host, or the device, disagrees with itself.
            if (
                reason.startswith(("values", "argument values"))
                and close(native, proxied)
                and (differs(native, call.on("cpu")) or not differs(native, call.on("cuda")))
            ):
                reason = ""
            if reason:
                wrong[way] = ("second call: " if repeat else "") + reason
                break
            if proxied.error and not same_text(native, proxied):
                wrong.setdefault("text", f"{native.text} / {proxied.text}")
    return wrong


def run(op: Any, dtype: str, limit: int | None) -> dict[str, Any]:
    start, failures, texts, count = time.monotonic(), [], [], 0
    for index, sample in enumerate(samples(op, dtype, limit)):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        wrong = check(op, sample, index, dtype)
        count += 1
        if text := wrong.pop("text", ""):
            texts.append([index, text])
        if wrong:
            failures.append([index, wrong])
    faulthandler.cancel_dump_traceback_later()
    return {
        "samples": count,
        "failures": failures,
        "texts": texts,
        "seconds": round(time.monotonic() - start, 2),
    }


def main() -> None:
    with open(sys.argv[1]) as f:
        tasks = json.load(f)
    limit = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table = operators()
    with open(sys.argv[2], "a", buffering=1) as out:
        for name, dtype in tasks:
            out.write(json.dumps({"begin": [name, dtype]}) + "\n")
            try:
                answer = run(table[name], dtype, limit or None)
            except Exception as error:  # its samples cannot be made or compared
                answer = {"samples": 0, "failures": [], "broken": repr(error)[:300]}
            torch.ones(1, device="cuda").cpu()  # a session that lost its device must not go on
            out.write(json.dumps({"task": [name, dtype], **answer}) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
