"""What a run's parameters may be, without a kernel and without a service."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from singularity_kernel.batch.running.fates import BadRun
from singularity_kernel.batch.submitting.parameters import check, taken_by
from singularity_kernel.batch.submitting.values import from_yaml, refuse_unsendable, value_of

CELL = """
lr = 0.1  # the rate
epochs: int = 3
name = "test"
flag = True
sizes = [
    1,
    2,  # more
]
table = {"a": 1}
anything = None
shape = (1, 2)
computed = lr * 2
maybe: int | None = None
either: Optional[float] = 1.0
typed: "str"
a, b = 1, 2
options: dict[str, int] = {}
swallow: Literal["african", "european"] = "african"
size: typing.Literal["small", 3] | None = None
rate: Union[float, Literal["auto", Literal["off"]]] = "auto"
either_way: "int | str | None" = 1
depth: Annotated[int, "layers"] = 3
color: Literal[Color.RED] = Color.RED
own: Swallow | None = "x"
none_given: int = None
"""


def notebook(source: str | None = CELL, *, injected: bool = False) -> Any:
    make = nbformat.v4
    cells = [make.new_code_cell("print()")]
    if source is not None:
        cells.insert(0, make.new_code_cell(source, metadata={"tags": ["parameters"]}))
    if injected:
        cells.append(make.new_code_cell("x = 1", metadata={"tags": ["injected-parameters"]}))
    return make.new_notebook(cells=cells)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.5),
        ("lr", 1),
        ("epochs", 5),
        ("name", "x"),
        ("flag", False),
        ("sizes", [1]),
        ("table", {"b": [1, None]}),
        ("anything", "x"),
        ("anything", {"any": 1}),
        ("shape", [3, 4]),
        ("computed", "whatever"),
        ("maybe", None),
        ("maybe", 3),
        ("either", None),
        ("either", 2),
        ("typed", "x"),
        ("b", 7),
        ("options", {}),
        ("swallow", "european"),
        ("size", "small"),
        ("size", 3),
        ("size", None),
        ("rate", 1),
        ("rate", "off"),
        ("either_way", "x"),
        ("either_way", None),
        ("depth", 4),
        ("color", "red"),
        ("own", 5),
        ("none_given", None),
    ],
)
def test_what_fits(name: str, value: Any) -> None:
    assert check(notebook(), {name: value}) == []


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("lr", "fast", "takes a number (its default is 0.1), not 'fast'"),
        ("lr", True, "takes a number (its default is 0.1), not True"),
        ("lr", None, "takes a number (its default is 0.1), not None"),
        ("epochs", 1.5, "takes a whole number (its default is 3), not 1.5"),
        ("epochs", True, "takes a whole number (its default is 3), not True"),
        ("name", 7, "takes text (its default is 'test'), not 7; nothing was started; -r name 7"),
        ("flag", 1, "takes true or false (its default is True), not 1"),
        ("sizes", "1,2", "takes a list (its default is [1, 2]), not '1,2'"),
        ("table", [], "takes a mapping"),
        ("maybe", "x", "takes a whole number or None (its default is None), not 'x'"),
        ("typed", 1, "takes text, not 1"),
        ("options", [1], "takes a mapping"),
        ("swallow", 5, "takes 'african' or 'european' (its default is 'african'), not 5; nothing"),
        ("swallow", "afrcan", "takes 'african' or 'european' (its default is 'african'), not 'af"),
        ("size", "large", "takes 'small', 3 or None (its default is None), not 'large'"),
        ("size", 3.0, "takes 'small', 3 or None"),
        ("size", True, "takes 'small', 3 or None"),
        ("rate", "on", "takes a number, 'auto' or 'off' (its default is 'auto'), not 'on'"),
        ("either_way", 1.5, "takes a whole number, text or None (its default is 1), not 1.5"),
        ("either_way", 1.5, "; nothing was started; -r either_way 1.5 passes it as text"),
        ("depth", "x", "takes a whole number (its default is 3), not 'x'"),
        ("none_given", "x", "takes a whole number or None (its default is None), not 'x'"),
        ("lrr", 1, "no parameter 'lrr'; did you mean 'lr'? It has lr, epochs, name,"),
        ("zzz", 1, "no parameter 'zzz'; It has lr, epochs,"),
        ("not a name", 1, "'not a name' cannot be the name of a parameter"),
        ("class", 1, "'class' cannot be the name of a parameter"),
        ("lr", float("nan"), "the value of parameter 'lr' cannot be sent (nan)"),
        ("lr", {1, 2}, "the value of parameter 'lr' cannot be sent"),
    ],
)
def test_what_does_not_fit_is_one_sentence(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(BadRun) as refused:
        check(notebook(), {name: value})
    assert sentence in refused.value.message
    assert "nothing was started" in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.exit_code == 64


def test_without_a_parameters_cell_papermill_decides() -> None:
    (note,) = check(notebook(None), {"x": 1})
    assert "no cell tagged 'parameters'" in note
    assert check(notebook(None), {}) == []
    assert check(notebook(None, injected=True), {"x": 1}) == []


def test_a_cell_that_assigns_nothing() -> None:
    with pytest.raises(BadRun, match="assigns nothing, so it has no 'x'"):
        check(notebook("# nothing yet"), {"x": 1})


def test_names_that_cannot_be_known() -> None:
    assert taken_by("from settings import *\nx = 1", "python") is None
    assert check(notebook("from settings import *"), {"x": 1})


def test_a_cell_with_magics_is_read_line_by_line() -> None:
    cell = "%matplotlib inline\nlr = 0.1  # rate\nname = 'x'"
    assert check(notebook(cell), {"lr": 1}) == []
    with pytest.raises(BadRun, match="takes a number"):
        check(notebook(cell), {"lr": "x"})
    with pytest.raises(BadRun, match="did you mean 'name'"):
        check(notebook(cell), {"nam_": "x"})


def test_another_language_is_passed_on_with_a_note() -> None:
    assert "without a check" in check(notebook("x <- 1"), {"x": 1}, "R")[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("3", 3),
        ("-3", -3),
        ("1e3", 1000.0),
        ("true", True),
        ("True", True),
        ("false", False),
        ("None", None),
        ("none", "none"),
        ("010", 10),
        ("", ""),
        ("a b", "a b"),
        ("[1]", "[1]"),
    ],
)
def test_values(text: str, value: Any) -> None:
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


def test_values_are_papermills() -> None:
    from papermill.cli import _resolve_type  # type: ignore[import-untyped]

    for text in ("0.1", "3", "010", "True", "False", "None", "x", "", "1_000", "[1]", "-1e-5"):
        assert value_of(text) == _resolve_type(text)


def test_yaml() -> None:
    assert from_yaml("lr: 0.1\nday: 2026-01-02\nsizes: [1, 2]", "f") == {
        "lr": 0.1,
        "day": "2026-01-02",
        "sizes": [1, 2],
    }
    assert from_yaml("", "f") == {}
    for text, sentence in (("[1", r"f is not YAML \(line 1\)"), ("[1]", "holds no parameters")):
        with pytest.raises(BadRun, match=sentence):
            from_yaml(text, "f")
    refuse_unsendable({"x": [None, True, 1.5, {"a": "b"}]})
