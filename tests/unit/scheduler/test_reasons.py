"""Reasons are codes with arguments; what people read is made of them, and nothing reads it back."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path

import pytest
from singularity_scheduler import core
from singularity_scheduler.core.reasons import obstacles
from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.reasons.reason import Reason, because, from_json, to_json
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import Change
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.explain.why import explain
from singularity_scheduler.service.ledger import rows
from singularity_scheduler.text.reasons import CODES, render, render_briefly, render_first
from support.scheduler_core import World, reads, whole

CORE = Path(core.__file__).parent
MAKERS = (CORE, CORE.parent / "explain", CORE.parent / "requests")
"""Packages that make reasons."""
EXPANDED = {
    "attempt_of": {"number", "attempts"},
    "choices": {"word", "near", "there"},
    "instead": {"other", "age_s"},
    "place": {"part", "parts"},
    "_mark": {"state", "by", "why"},
    "_duty": {"node", "state", "by", "why"},
    "_of_kind": {"wait", "tier", "needs", "samples"},
}
"""Functions of `core` that give several arguments at once."""


@pytest.mark.parametrize("name", ["sweep: basic needs more", "x: it is that one's turn"])
def test_who_took_a_device_is_a_fact_whatever_sessions_are_called(name: str) -> None:
    world = World(1)
    world.holding("a", Tier.BASIC)
    world.create("b", Tier.PREMIUM, user="bob")
    named = world.state.sessions["b"]
    world.state.sessions["b"] = named.__class__(**{**vars(named), "name": name})
    world.need("b")
    taken = explain(world.state, world["a"], world.now)["facts"]["preempted"]
    assert taken["by"] == f"bob/{name}"
    assert taken["tier"] == "premium"
    assert taken["reason_code"] == "paused_lower"
    assert taken["reason_args"] == {
        "by": f"bob/{name}",
        "tier": "premium",
        "below": "basic",
        "least": 1,
        "most": 1,
    }
    assert taken["reason"] == f"paused for bob/{name}: premium goes before basic and needs 1 device"


def made() -> dict[str, set[str]]:
    """code -> names of its arguments, as the modules of `core` make them."""
    found: dict[str, set[str]] = {}
    for path in sorted(path for package in MAKERS for path in package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if not called or node.func.id not in ("because", "Reason") or not node.args:
                continue
            first = node.args[0]
            codes = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
            if not all(isinstance(code, ast.Constant) for code in codes):
                continue  # made of what was written down
            names: set[str] = set()
            for keyword in node.keywords:
                if keyword.arg is not None:
                    names.add(keyword.arg)
                else:
                    assert isinstance(keyword.value, ast.Call), ast.unparse(node)
                    names |= EXPANDED[ast.unparse(keyword.value.func).rpartition(".")[2]]
            for code in codes:
                assert isinstance(code, ast.Constant)
                assert found.setdefault(str(code.value), names) == names, code.value
    return found


def test_each_code_has_its_arguments_and_its_sentence() -> None:
    sentences = {code: set(inspect.signature(CODES[code]).parameters) for code in CODES}
    # A ledger from before there were codes has the sentence alone.
    assert made() == sentences


def reads_a_sentence(node: ast.AST) -> bool:
    """Whether it looks into what a `reason` says, as `"..." in x.reason` and `x.reason.find(...)`;
    that people search in the log (`icontains`) is none of that."""
    if isinstance(node, ast.Compare):
        inside = [isinstance(one, ast.In) for one in node.ops]
        return any(
            found and isinstance(text, ast.Attribute) and text.attr == "reason"
            for found, text in zip(inside, node.comparators, strict=True)
        )
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    of = node.func.value
    asks = isinstance(of, ast.Attribute) and of.attr == "reason"
    return asks and node.func.attr != "icontains"


def test_nothing_reads_a_sentence_back() -> None:
    for text in ('"to the store" in view.reason', 'view.reason.startswith("cancelled by ")'):
        assert any(map(reads_a_sentence, ast.walk(ast.parse(text))))
    found = [
        f"{path}:{node.lineno}"
        for path in sorted(CORE.parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if reads_a_sentence(node)
    ]
    assert found == []


def test_a_reason_is_a_frozen_value_that_json_keeps() -> None:
    first = because("parked_by", by="alice")
    why = because("waits_for_room", why="no room", after=first)
    assert why == because("waits_for_room", after=first, why="no room")
    assert hash(why) == hash(because("waits_for_room", after=first, why="no room"))
    with pytest.raises(AttributeError):
        why.code = "queued"  # type: ignore[misc]
    assert from_json(**json.loads(json.dumps(to_json(why)))) == why
    lists = because("put_back", name="k", back=("a", "b"), lost=())
    assert from_json(**json.loads(json.dumps(to_json(lists)))) == lists
    assert (why.root, why.by, why.tier) == (first, "alice", None)


def test_a_code_or_an_argument_that_there_is_not_is_refused() -> None:
    with pytest.raises(KeyError):
        render(Reason("no such code"))
    with pytest.raises(TypeError):
        render(because("parked_by", who="alice"))


def test_sentences_are_what_they_were() -> None:
    world = World(2)
    world.holding("a", Tier.BASIC)
    world.create("b", Tier.PREMIUM, user="bob")
    a, b = world["a"], world["b"]
    parked = reasons.parked_by("alice")
    assert {
        render(why)
        for why in (
            parked,
            reasons.paused_lower(a, b),
            move_reasons.suspending("alice", "its server was stopped"),
            run_reasons.last_attempt(3, run_reasons.exited(-9, "")),
            run_reasons.cancelled_with_group(run_reasons.group_late(600.0)),
            run_reasons.closed(a, None, "its Jupyter server is gone")[1],
            move_reasons.resume_failed_damaged("chunk ab is wrong", whole("k1", 940.0), 1000.0),
            move_reasons.fenced(None),
        )
    } == {
        "parked by alice: nothing is lost; it comes back with the next device call",
        "paused for bob/b: premium goes before basic and needs 1 device; nothing is lost; it comes "
        "back with the next device call and running code just waits",
        "suspended by alice: its server was stopped: everything of it goes to the store and its "
        "node becomes free; nothing is lost",
        "the last of its 3 attempts was ended as well: its process was ended by signal 9",
        "cancelled by its group: the time limit of the group, 10 min, is over",
        "closed by the scheduler: its Jupyter server is gone",
        "could not come back, so it stays suspended and nothing more is lost (chunk ab is wrong); "
        "the next one that can be used is 'k1' (60 s old)",
        "this session has moved on and is in the store now",
    }
    assert render_first(parked) == "parked by alice: nothing is lost"
    assert render_briefly(parked) == "parked by alice"
    assert render_briefly(reasons.lapsed()) == ("parked because its lease was not renewed in time")


def test_the_reasons_of_many_nodes_are_one_that_does_not_grow() -> None:
    whys = [obstacles.in_use(f"n{number}") for number in range(10)]
    assert obstacles.several([]) is None
    assert obstacles.several(whys[:1] * 3) == whys[0]
    busy = "the devices of node {} are in use by sessions that go before it"
    five = obstacles.several(whys[:5])
    assert five is not None
    assert render(five) == "; ".join(busy.format(f"n{number}") for number in range(5))
    ten = obstacles.several(whys)
    assert ten is not None
    assert from_json(**json.loads(json.dumps(to_json(ten)))) == ten
    assert render(ten) == "; ".join(
        [*(busy.format(f"n{number}") for number in range(4)), "6 other nodes cannot take it either"]
    )


def test_a_part_is_paused_by_whoever_took_the_devices_of_another() -> None:
    taken = because("paused_lower", by="bob/b", tier="premium", below="basic", least=1, most=1)
    paused = because("part_paused", part=1, of=taken)
    assert (paused.by, paused.tier) == ("bob/b", "premium")
    assert render_first(paused) == (
        "part 1 of its gang was paused: paused for bob/b: premium goes before basic and needs 1 "
        "device"
    )


def test_a_line_of_history_keeps_its_code_and_what_was_said() -> None:
    why = because("parked_by", by="alice")
    states = (ProcessState.LIVE, DeviceState.PARKING)
    plain = Change("a", 1.0, *states, "parking", why, "user.park")
    told = Change("a", 1.0, *states, "parking", why, "user.park", text="parked by alice; and more")
    for change in (plain, told):
        row = rows.change_to_row(change)
        assert row["reason"] == reads(change)
        assert rows.change_from_row(row) == change


@pytest.mark.parametrize(
    ("code", "args"),
    [
        ("", {}),
        ("no_such_code", {"by": "alice"}),
        ("parked_by", {"by": "alice", "since": 1.0}),
        ("part_paused", {"part": 1, "of": {"code": "no_such_code", "args": {}}}),
    ],
    ids=["none", "unknown", "other arguments", "unknown within"],
)
def test_of_a_code_of_another_version_the_sentence_is_kept(code: str, args: object) -> None:
    states = (ProcessState.LIVE, DeviceState.PARKING)
    told = Change("a", 1.0, *states, "parking", because("parked_by", by="alice"), "user.park")
    row = rows.change_to_row(told) | {"reason_code": code, "reason_args": json.dumps(args)}
    assert rows.change_from_row(row).why == because("said", text=reads(told))
    older = {name: value for name, value in row.items() if not name.startswith("reason_")}
    why = rows.change_from_row(older).why
    assert render(why) == reads(told)
    assert render_first(why) == reads(told).split("; ")[0] != reads(told)
    assert reads(rows.change_from_row(row)) == reads(told)


def test_a_sentence_that_a_version_without_codes_wrote_counts_and_not_the_code_before_it() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.ParkAsked("a", "alice"))
    view = world["a"]
    row = rows.session_to_row(view)
    assert rows.session_from_row(row, view.devices).why == view.why
    assert view.why.by == "alice"
    sentence = "paused for bob/b: premium needs 1 device; nothing is lost"
    by_older = rows.session_from_row({**row, "reason": sentence}, view.devices)
    assert by_older.why == because("said", text=sentence)
    assert (reads(by_older), by_older.why.by) == (sentence, None)


def test_a_session_keeps_its_code_where_this_version_words_it_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.ParkAsked("a", "alice"))
    view = world["a"]
    row = rows.session_to_row(view)
    without_sums = {**row, "reason_sum": ""}
    assert rows.session_from_row(without_sums, view.devices).why == view.why
    monkeypatch.setitem(CODES, "parked_by", lambda by: f"put aside by {by}")
    found = rows.session_from_row(row, view.devices)
    assert (found.why, reads(found)) == (view.why, "put aside by alice")


def test_what_comes_back_says_why_it_was_away_and_not_more_each_time() -> None:
    world = World(1)
    world.holding("a")
    for _ in range(3):
        world.do(ev.SuspendAsked("a", "alice"))
        world.answer()
        world.do(ev.ResumeAsked("a", "alice"))
        coming = world["a"].why
        assert coming.code == "coming_back"
        assert [one.code for one in coming.chain()] == ["coming_back", "called"]
        world.answer()
