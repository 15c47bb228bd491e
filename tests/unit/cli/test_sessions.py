"""Which session a word means."""

from __future__ import annotations

import asyncio

import pytest
from singularity_proxy.errors import BadRequest, NotFound
from singularity_scheduler.cli.sessions.choosing import choices, find, matching
from support.cli_double import Double, session

A = session(1, name="train.ipynb")
B = session(2, name="train.ipynb", user="bob")
C = {**session(3), "id": "3f9c00000001", "name": "eval"}
D = {**session(4), "id": "3f9c00000002", "name": "3f9c0"}
ENDED = {**session(5, state="failed", process_state="failed"), "id": "beef00000000", "name": "old"}


def found(word: str) -> str:
    return asyncio.run(find(Double(A, B, C, D, ENDED), word))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "session_id"),
    [
        (A["id"], A["id"]),
        ("0001", A["id"]),
        ("3f9c00000002", D["id"]),
        ("eval", C["id"]),
        ("bob/train.ipynb", B["id"]),
        ("beef", ENDED["id"]),
        ("ffffffffffff", "ffffffffffff"),  # not looked up: the call tells
    ],
)
def test_ids_beginnings_and_names(word: str, session_id: str) -> None:
    assert found(word) == session_id


@pytest.mark.parametrize("word", ["3f9", "000", "", "EVAL", "old", "eve/eval", "tr", "dead"])
def test_what_is_nothing(word: str) -> None:
    with pytest.raises(NotFound) as error:
        found(word)
    assert "\n" not in error.value.message


@pytest.mark.parametrize("word", ["train.ipynb", "3f9c", "3f9c0"])
def test_what_may_be_several_is_refused_with_their_ids(word: str) -> None:
    with pytest.raises(BadRequest) as error:
        found(word)
    ids = error.value.fields["sessions"]
    assert len(ids) == 2
    assert all(i in error.value.message for i in ids)
    assert "nothing was done" in error.value.message


@pytest.mark.parametrize(
    ("word", "way_out"),
    [("3f9c", "give more of the id"), ("train.ipynb", "give the id of one instead of its name")],
)
def test_what_may_be_several_says_what_to_give_instead(word: str, way_out: str) -> None:
    with pytest.raises(BadRequest, match=f"nothing was done: {way_out}$"):
        found(word)


def test_the_parts_of_one_gang_are_one() -> None:
    """What is asked of one of them concerns all."""
    gang = {"gang": "ab", "parts": 2, "sessions": []}
    second = {**session(11, name="ddp"), "part": {**gang, "number": 1}}
    first = {**session(12, name="ddp"), "part": {**gang, "number": 0}}
    assert asyncio.run(find(Double(second, first), "ddp")) == first["id"]  # type: ignore[arg-type]
    third = {**session(13, name="ddp"), "part": {**gang, "gang": "cd", "number": 0}}
    for other in (third, session(14, name="ddp")):
        with pytest.raises(BadRequest, match="may be 3 sessions"):
            asyncio.run(find(Double(second, first, other), "ddp"))  # type: ignore[arg-type]


def test_a_sentence_names_a_few_only() -> None:
    many = [session(n, name="x") for n in range(1, 20)]
    with pytest.raises(BadRequest, match="and 14 more"):
        asyncio.run(find(Double(*many), "x"))  # type: ignore[arg-type]


def test_an_id_that_is_also_a_name_is_the_id() -> None:
    other = {**session(9), "id": "999900000009", "name": A["id"]}
    assert matching(A["id"], [A, other]) == [A]


def test_completions_are_ids_and_names_that_only_one_has() -> None:
    offered = choices("", [A, B, C])
    assert set(offered) == {A["id"], B["id"], C["id"], "eval"}
    assert offered[C["id"]] == "eval, ready"
    assert set(choices("ev", [A, B, C])) == {"eval"}
    assert set(choices("3", [A, B, C])) == {C["id"]}
