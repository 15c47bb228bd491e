"""What --sweep says, and the grid of it."""

from __future__ import annotations

import time

import pytest
from singularity_kernel.batch.submitting.options import split_options
from singularity_kernel.batch.submitting.sweeps import parse_sweep, values_of
from singularity_proxy.errors import BadRequest
from singularity_scheduler.jobs.sweeps import Sweep


@pytest.mark.parametrize(
    ("said", "values"),
    [
        ("0.1,0.01", [0.1, 0.01]),
        ("0:4", [0, 1, 2, 3]),
        ("0:10:3", [0, 3, 6, 9]),
        ("4:0:-2", [4, 2]),
        ("-2:1", [-2, -1, 0]),
        ("adam,sgd", ["adam", "sgd"]),
        ("true,None", [True, None]),
        ("7", [7]),
        ("a:b", ["a:b"]),
        ("1e-3,x=y", [1e-3, "x=y"]),
    ],
)
def test_values(said: str, values: list[object]) -> None:
    assert values_of(said) == values


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr"], "names no values"),
        (["lr="], "names no values"),
        (["=1"], "names no values"),
        (["lr=1", "lr=2"], "names lr twice"),
        (["lr=1,,2"], "empty value"),
        (["lr=1,1"], "has 1 twice"),
        (["n=0:4:0"], "the step of 0:4:0 is 0"),
        (["n=4:0"], "there is no number in 4:0"),
        (["n=0:1000000000000"], "1000000000000 combinations, and a group may have 1000"),
        (["n=0:99999999999999999999"], "more numbers than can be counted"),
        (["a=0:100", "b=0:11"], "1100 combinations, and a group may have 1000"),
    ],
)
def test_what_is_no_sweep(words: list[str], said: str) -> None:
    with pytest.raises(BadRequest, match=said) as error:
        parse_sweep(words)
    assert "\n" not in error.value.message


def test_the_grid_and_what_is_checked_of_it() -> None:
    sweep = Sweep(parse_sweep(["lr=0.1,0.01", "seed=0:3"]))
    combinations = sweep.combinations
    assert combinations[:2] == [{"lr": 0.1, "seed": 0}, {"lr": 0.1, "seed": 1}]
    assert len(combinations) == 6
    assert Sweep(sweep.space, most=4).combinations == combinations[:4]
    assert sweep.samples == [
        {"lr": 0.1, "seed": 0},
        {"lr": 0.01, "seed": 1},
        {"lr": 0.01, "seed": 2},
    ]


def test_only_what_is_run_of_a_large_grid_is_looked_at() -> None:
    large = {"lr": list(range(1000)), "seed": list(range(1000)), "kind": list(range(1000))}
    began = time.thread_time()
    sweep = Sweep(large, most=1000)
    sweep.refuse_too_many()
    assert len(sweep.combinations) == len(sweep.samples) == 1000
    assert Sweep(large, most=3).samples == [{"lr": 0, "seed": 0, "kind": k} for k in range(3)]
    assert time.thread_time() - began < 1
    cut = Sweep({"lr": [1, True, 1.0], "seed": [0, 1]}, most=4)
    assert cut.samples == cut.combinations[:3], "the fourth has nothing new"
    assert Sweep(cut.space, most=6).samples == Sweep(cut.space).samples


def test_sweeps_stand_beside_parameters() -> None:
    given, rest = split_options(["n.ipynb", "-p", "a", "1", "--sweep", "b=1,2", "--sweep=c=0:2"])
    assert [word for (word,) in given.of("--sweep")] == ["b=1,2", "c=0:2"]
    assert rest == ["n.ipynb"]
    given.swept = {"b": 1}
    assert given.parameters() == {"a": 1, "b": 1}
    given.swept = {"a": 2}
    with pytest.raises(BadRequest, match="a has a value and is swept over"):
        given.parameters()
