"""`${{inputs.x}}`: what it stands for, and what is said when it stands for nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest
from singularity_scheduler.jobs.expressions import BadExpression, Values

SOURCES: dict[str, Any] = {
    "inputs.lr": 0.1,
    "inputs.on": True,
    "inputs.again": "${{inputs.lr}}",
    "inputs.name": "run-${{ inputs.again }}-${{outputs.model}}",
    "outputs.model": "/models",
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${{inputs.lr}}", 0.1),
        (" ${{ inputs.again }} ", 0.1),
        ("lr=${{inputs.lr}}", "lr=0.1"),
        ("${{inputs.on}}${{inputs.lr}}", "true0.1"),
        ("${{inputs.name}}", "run-0.1-/models"),
        ("$HOME ${x} {{y}}", "$HOME ${x} {{y}}"),
        (3, 3),
        ({"a": ["${{inputs.lr}}", None]}, {"a": [0.1, None]}),
    ],
)
def test_what_expressions_stand_for(text: Any, value: Any) -> None:
    assert Values(SOURCES).filled(text) == value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("${{inputs.rl}}", "${{inputs.rl}} stands for nothing: did you mean 'inputs.lr'?"),
        ("${{inputs}}", "${{inputs}} means nothing here: write ${{inputs.NAME}}, "),
        ("${{search_space.lr}}", "${{search_space.lr}} stands for nothing"),
        ("${{parent.inputs.lr}}", "one file describes one job, write ${{inputs.lr}}"),
        ("${{parent.jobs.x.outputs.y}}", "speaks of a pipeline, and one file describes one job"),
        ("a ${{inputs.lr", "'${{inputs.lr' has no end: write '}}'"),
        ("${{}}", "${{}} means nothing here"),
    ],
)
def test_expressions_that_stand_for_nothing(text: str, sentence: str) -> None:
    with pytest.raises(BadExpression) as refused:
        Values(SOURCES).filled(text)
    assert sentence in str(refused.value)


def test_circles_are_named() -> None:
    circle = {
        "inputs.a": "${{inputs.b}}",
        "inputs.b": "x${{outputs.c}}",
        "outputs.c": "${{inputs.a}}",
    }
    with pytest.raises(BadExpression) as refused:
        Values(circle).of("inputs.b")
    assert str(refused.value).endswith("inputs.b -> outputs.c -> inputs.a -> inputs.b")
    with pytest.raises(BadExpression, match=r"inputs\.x -> inputs\.x"):
        Values({"inputs.x": "${{inputs.x}}"}).of("inputs.x")


def test_inputs_that_double_each_other_end_soon() -> None:
    sources = {"inputs.a0": "x" * 100}
    sources |= {f"inputs.a{n}": f"${{{{inputs.a{n - 1}}}}}" * 10 for n in range(1, 30)}
    begun = time.thread_time()
    with pytest.raises(BadExpression, match="longer than 64 KiB"):
        Values(sources).of("inputs.a29")
    assert time.thread_time() - begun < 1


def test_each_is_finished_once() -> None:
    finished = []

    def finish(name: str, value: Any) -> Any:
        finished.append(name)
        return f"<{value}>"

    values = Values({"inputs.a": 1, "outputs.b": "${{inputs.a}}"}, finish)
    assert values.filled("${{outputs.b}} ${{inputs.a}} ${{outputs.b}}") == "<<1>> <1> <<1>>"
    assert finished == ["inputs.a", "outputs.b"]
