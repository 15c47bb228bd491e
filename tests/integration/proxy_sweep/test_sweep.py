"""A slice of the sweep over torch's own operator tables, proxied against native (tests/sweep).

The default run takes the first sample of every operator in one dtype, another one for each seed,
and the first inputs that operators must refuse; `--full` takes everything.
"""

from __future__ import annotations

import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import matrix
from sweep import known
from sweep.compare import same_bits
from sweep.run import Task, figures, list_tasks, sweep

ERROR_OPERATORS = 40
"""Operators of a default run whose refusals are compared."""


def slice_of(tasks: list[Task]) -> list[Task]:
    of: dict[str, list[Task]] = {}
    for task in tasks:
        of.setdefault(task[0], []).append(task)
    chosen = []
    for number, own in enumerate(of.values()):
        values = [t for t in own if t[1] != "errors"]
        if values:
            chosen.append(values[(number + matrix.seed()) % len(values)])
    errors = [t for t in tasks if t[1] == "errors"]
    return chosen + errors[matrix.seed() % 3 :: max(1, len(errors) // ERROR_OPERATORS)]


@pytest.fixture(scope="module")
def results() -> dict[Task, dict[str, Any]]:
    tasks = list_tasks()
    if matrix.is_full():
        return sweep(tasks, jobs=2)
    return sweep(slice_of(tasks), samples=1)


@pytest.mark.timeout(3600 if matrix.is_full() else 300)
def test_proxied_operators_equal_native_ones_as_far_as_the_table_says(
    results: dict[Task, dict[str, Any]],
) -> None:
    wrong = known.unexpected(known.load(), results)
    assert not wrong, "\n".join(wrong[:40])
    assert sum(r["samples"] for r in results.values()) >= 500
    if matrix.is_full():
        assert figures(results)["opinfo_equal_fraction"] >= 0.99


def test_the_table_is_of_every_operator_and_explains_itself() -> None:
    table = known.load()
    assert table["opinfo_samples"] > 6_000
    assert table["opinfo_equal_fraction"] >= 0.99
    assert [name for name, entry in table["operators"].items() if not entry["reason"]] == []


def test_a_difference_outside_of_the_table_is_reported() -> None:
    table = {"operators": {"add": {"reason": "because", "samples": {"int64": [1]}}}}
    equal: dict[str, Any] = {"samples": 2, "failures": []}
    differs: dict[str, Any] = {"samples": 2, "failures": [[1, {"function": "values differ"}]]}
    assert known.unexpected(table, {("add", "int64"): differs}) == []
    assert "is equal now" in known.unexpected(table, {("add", "int64"): equal})[0]
    assert "differs" in known.unexpected(table, {("mul", "int64"): differs})[0]
    assert known.unexpected(table, {("add", "int64"): {"samples": 1, "failures": []}}) == []


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
def test_sparse_complex_values_are_compared(layout: torch.layout) -> None:
    def sparse(last: complex) -> torch.Tensor:
        return torch.tensor([[1 + 2j, 0], [0, last]]).to_sparse(layout=layout)

    assert same_bits(sparse(3 - 1j), sparse(3 - 1j))
    assert not same_bits(sparse(3 - 1j), sparse(3 + 1j))


def test_a_crash_costs_one_task_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sweep import run

    calls: list[list[Task]] = []
    crashing = ("b", "int64")

    def collect(self: run.Shard, out: Path) -> Task | None:
        """As if the worker died in the second task of its first life, and again in its second."""
        calls.append(list(self.left))
        for task in self.left[: [1, 0, None][len(calls) - 1]]:
            self.results[task] = {"samples": 1, "failures": []}
            self.left.remove(task)
        return crashing if len(calls) < 3 else None

    class Process:
        returncode = -11

        def wait(self, timeout: float) -> int:
            return self.returncode

    monkeypatch.setattr(run.Shard, "_collect", collect)

    class Session:
        def env(self) -> dict[str, str]:
            return {}

    monkeypatch.setattr(run, "Standalone", lambda: nullcontext(Session()))
    double = SimpleNamespace(
        Popen=lambda *a, **k: Process(),
        DEVNULL=subprocess.DEVNULL,
        TimeoutExpired=subprocess.TimeoutExpired,
    )
    monkeypatch.setattr(run, "subprocess", double)
    shard = run.Shard([("a", "int64"), crashing, ("c", "int64")], 0, tmp_path)
    shard.run()
    assert shard.results[crashing]["failures"] == [[0, {"crash": "exit code -11"}]]
    assert len(shard.results) == 3
    assert calls[1:] == [[crashing, ("c", "int64")], [("c", "int64")]]
