"""Values that runs record: what is kept of them, and what a group does on them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from singularity_proxy.errors import BadRequest
from singularity_scheduler.client.values import MAX_ALL, MAX_VALUE, kept
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.steps.goals import Objective, condition_of, objective_of
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import AgentFacts
from singularity_scheduler.requests.goals import parse_condition
from singularity_scheduler.requests.goals import parse_objective as parse
from singularity_scheduler.service.ledger import rows
from singularity_scheduler.text.reasons import render
from support.scheduler_core import World, devices_of, reads
from support.scheduler_groups import end, started, submit_group


def test_the_last_value_of_a_name_is_kept() -> None:
    assert kept({"loss": 1.0}, {"loss": 0.5, "name": "a"}) == ({"loss": 0.5, "name": "a"}, {})


def test_numbers_that_json_does_not_have_are_texts() -> None:
    found, _ = kept({}, {"a": float("nan"), "b": [float("-inf")], "c": {"d": float("inf")}})
    assert found == {"a": "NaN", "b": ["-Infinity"], "c": {"d": "Infinity"}}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("", 1, "cannot be the name"),
        ("x" * 65, 1, "1 to 64 printable characters"),
        ("a\nb", 1, "cannot be the name"),
        ("x", "y" * MAX_VALUE, "has 1026 characters, and one that is kept with the session has"),
        ("x", object(), "JSON has no such value"),
    ],
)
def test_what_is_not_kept(name: str, value: object, sentence: str) -> None:
    found, refused = kept({"x": 7}, {name: value})
    assert found == {"x": 7}
    assert sentence in refused[name]
    assert "\n" not in refused[name]


def test_all_values_of_a_session_together_are_bounded() -> None:
    found, refused = kept({}, {f"n{i}": "y" * 1000 for i in range(20)})
    assert len(json.dumps(found)) <= MAX_ALL
    assert (len(found), len(refused)) == (8, 12)
    assert "at most 8 KiB" in refused["n19"]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.text(max_size=70), plain, max_size=5), max_size=5))
def test_whatever_is_recorded_what_is_kept_is_small_and_json(told: list[dict[str, Any]]) -> None:
    found: dict[str, Any] = {}
    for new in told:
        found, refused = kept(found, new)
        assert found.keys().isdisjoint(refused) or all(name in found for name in refused)
    assert len(json.dumps(found, allow_nan=False)) <= MAX_ALL


@pytest.mark.parametrize(
    ("text", "values", "met"),
    [
        ("loss<0.01", {"loss": 0.009}, True),
        ("loss<0.01", {"loss": 0.01}, False),
        ("loss <= 1e-2", {"loss": 0.01}, True),
        (" acc>=.9 ", {"acc": 0.9}, True),
        ("acc>0.9", {"acc": "0.95"}, False),
        ("acc>-1", {"acc": True}, False),
        ("acc>0", {}, False),
        ("n==3", {"n": 3}, True),
        ("n<0.12345678", {"n": 0.123456785}, False),
        ("n!=3", {"n": 4}, True),
        ("val/acc>0.5", {"val/acc": 1}, True),
        ("loss<0.01", {"loss": "NaN"}, False),
    ],
)
def test_conditions(text: str, values: dict[str, Any], met: bool) -> None:
    assert parse_condition(text).met(values) is met
    assert parse_condition(str(parse_condition(text))) == parse_condition(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "loss", "loss<", "<1", "loss<x", "loss=1", "loss<1 or 1", "loss<1; x", "f(x)<1"),
        *("loss<1e999", "loss<0x10", "loss<nan", "a b<1", "loss<1\nx", "l" * 65 + "<1", "1<2"),
        "loss<\u0661",
    ],
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(BadRequest, match="a name, a comparison and a number"):
        parse_condition(text)


def test_objectives() -> None:
    found = [("a", {"loss": 2}), ("b", {"loss": 1.5}), ("c", {"loss": "NaN"}), ("d", {})]
    least = parse({"primary_metric": "loss", "goal": "Minimize"})
    assert least == Objective("loss", "minimize") == objective_of(str(least))
    assert least.best(found) == "b"
    assert Objective("loss", "maximize").best(found) == "a"
    assert Objective("acc", "maximize").best(found) is None
    assert objective_of("") is None
    assert parse(None) is None
    for bad in ({"goal": "minimize"}, {"primary_metric": "x", "goal": "best"}, "loss", []):
        with pytest.raises(BadRequest):
            parse(bad)


def test_the_first_that_meets_the_condition_ends_the_others_and_goes_on() -> None:
    world = World(2)
    submit_group(world, "g", 4, stop_when="loss<0.1")
    submit_group(world, "other", 2)
    world.do(ev.Recorded("g1", {"loss": 0.5, "name": "x"}))
    world.do(ev.Recorded("g2", {"loss": float("nan")}))
    assert not any(world[sid].final for sid in ("g1", "g2", "g3", "g4"))
    world.do(ev.Recorded("g2", {"loss": 0.05}))
    world.answer(ev.End, ev.Start)
    ended = [world.known[sid] for sid in ("g1", "g3", "g4")]
    assert [view.process_state.value for view in ended] == ["cancelled"] * 3
    why = "cancelled by its group: loss is 0.05 in member 2 of 4 (loss<0.1)"
    assert [reads(view) for view in ended] == [why] * 3
    winner = world["g2"]
    assert not winner.final
    met = because("figure_in", name="loss", value=0.05, number=2, members=4)
    assert winner.member == replace(winner.member, reached="g2", reached_why=met)
    assert render(met) == "loss is 0.05 in member 2 of 4"
    row = rows.session_to_row(winner)
    assert rows.member_from_text(row["member"]) == winner.member
    assert json.loads(world.known["g1"].recorded) == {"loss": 0.5, "name": "x"}
    assert "other1" in started(world)
    world.do(ev.Recorded("g2", {"loss": 0.01}))
    end(world, "g2")
    assert world.known["g2"].process_state.value == "completed"


def test_what_was_recorded_while_the_service_was_away_counts() -> None:
    world = World(2)
    submit_group(world, "g", 2, stop_when="loss<0.1")

    def rejoin(alive: bool, loss: float) -> None:
        fact = AgentFacts(
            "g1",
            alive,
            0,
            (),
            False,
            False,
            None,
            None if alive else 0,
            recorded=f'{{"loss": {loss}}}',
        )
        other = AgentFacts("g2", True, 0, (), False, False, None)
        world.do(ev.NodeJoined("local", devices_of("local", 2), (fact, other)))

    rejoin(True, 0.05)
    assert json.loads(world["g1"].recorded) == {"loss": 0.05}
    assert world["g2"].process_state.value == "cancelled"
    rejoin(False, 0.01)
    assert json.loads(world["g1"].recorded) == {"loss": 0.01}
    assert world["g1"].process_state.value == "completed"


def of_node(sid: str, values: dict[str, Any], exit_code: int | None = None) -> AgentFacts:
    alive, recorded = exit_code is None, json.dumps(values)
    return AgentFacts(sid, alive, 0, (), False, False, None, exit_code, recorded=recorded)


def test_two_that_meet_the_condition_at_once_do_not_end_each_other() -> None:
    world = World(2)
    submit_group(world, "g", 2, stop_when="loss<0.1")
    told = (of_node("g1", {"loss": 0.05}), of_node("g2", {"loss": 0.01}))
    world.do(ev.NodeJoined("local", devices_of("local", 2), told))
    assert [world[sid].process_state.value for sid in ("g1", "g2")] == ["live", "cancelled"]
    assert [m.reached for sid in ("g1", "g2") if (m := world[sid].member)] == ["g1", "g1"]


@pytest.mark.parametrize(("code", "others"), [(0, "cancelled"), (1, "live")])
def test_one_that_met_the_condition_and_completed_meanwhile_ends_the_others(
    code: int, others: str
) -> None:
    world = World(2)
    submit_group(world, "g", 2, stop_when="loss<0.1")
    told = (of_node("g1", {"loss": 0.05}, code), of_node("g2", {}))
    world.do(ev.NodeJoined("local", devices_of("local", 2), told))
    assert world["g2"].process_state.value == others
    winner = world["g1"].member
    assert winner is not None
    assert winner.reached == ("g1" if code == 0 else "")


def test_a_number_that_no_float_can_hold_meets_a_condition() -> None:
    world = World(2)
    submit_group(world, "g", 2, stop_when="n>1")
    world.do(ev.Recorded("g1", {"n": 10**400}))
    assert reads(world["g2"]) == "cancelled by its group: n is 1e+400 in member 1 of 2 (n>1)"


def test_conditions_of_many_groups_are_not_all_remembered() -> None:
    for number in range(1000):
        parse_condition(f"loss<{number}")
    assert condition_of.cache_info().currsize < 1000


def test_many_values_at_once_cost_little() -> None:
    """Whoever asks the node agent to keep them must not keep it from its work."""
    looked: list[str] = []

    class Name(str):
        def isprintable(self) -> bool:
            looked.append(self)
            return super().isprintable()

    many = {Name(f"n{number}"): 0 for number in range(100_000)}
    found, refused = kept({"n5": 1}, many)
    assert len(json.dumps(found)) <= MAX_ALL
    assert found["n5"] == 0
    assert len(looked) < 2000
    assert len(refused) < 2000
    assert "no room for 98976 more values" in refused[""]
