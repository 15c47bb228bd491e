"""What the core refuses is a typed error with code and arguments; the edge makes its sentence."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

import pytest
from singularity_proxy import errors
from singularity_proxy.errors import BadRequest, Conflict, NotFound, SingularityError
from singularity_scheduler import core
from singularity_scheduler.core.operations.health import FATAL_XIDS
from singularity_scheduler.core.placement.choice import named
from singularity_scheduler.core.reasons.reason import Words, because
from singularity_scheduler.core.reasons.refusals import Refused, choices, refuse
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.devices import DeviceMark
from singularity_scheduler.core.values.administration import (
    NodeDuty,
    NodeMark,
    Upgrade,
    UpgradeState,
)
from singularity_scheduler.core.values.requested import Member
from singularity_scheduler.service.api.problems import problem
from singularity_scheduler.service.ledger import admin_rows, rows
from singularity_scheduler.text import reasons
from singularity_scheduler.text.codes.faults import XIDS
from singularity_scheduler.text.errors import in_words, to_error
from singularity_scheduler.text.reasons import render_duty, render_words

CORE = Path(core.__file__).parent
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type)}


def test_a_refusal_is_of_its_kind_and_has_no_sentence_yet() -> None:
    with pytest.raises(NotFound) as raised:
        named(ClusterState(), "n1")
    refused = raised.value
    assert isinstance(refused, Refused)
    assert refused.why == because("no_such_node", word="n1", near=None, there=())
    assert (refused.kind, refused.fields) == (NotFound, {"node": "n1"})
    assert (refused.reason, refused.http_status) == (NotFound.reason, NotFound.http_status)


def test_at_the_edge_it_is_an_error_with_a_sentence_code_and_arguments() -> None:
    with pytest.raises(SingularityError) as raised, in_words():
        named(ClusterState(), "n1")
    error = raised.value
    assert type(error) is NotFound
    assert error.message == str(error) == "there is no node 'n1': pick from none"
    args = {"word": "n1", "near": None, "there": []}
    assert error.fields == {"node": "n1", "reason_code": "no_such_node", "reason_args": args}
    document = json.loads(json.dumps(problem(error, error.http_status)))
    assert document["detail"] == error.message
    assert (document["reason"], document["reason_code"]) == ("not_found", "no_such_node")
    assert document["reason_args"] == args


def test_what_is_no_refusal_passes_as_it_is() -> None:
    for error in (ValueError("x"), Conflict("no", session="a")):
        with pytest.raises(type(error)) as raised, in_words():
            raise error
        assert raised.value is error


def test_a_reason_within_a_refusal_is_told_with_it() -> None:
    why = because("not_moved", who="ada/a", why=because("in_use", node="n2"))
    error = to_error(refuse(Conflict, why))
    assert error.message.startswith("ada/a was not moved and goes on where it is: the devices of")
    assert error.fields["reason_args"]["why"] == {"code": "in_use", "args": {"node": "n2"}}


def test_the_nearest_name_is_told_else_all() -> None:
    assert choices("nod-1", ["node-1", "x"]) == {"word": "nod-1", "near": "node-1", "there": ()}
    assert choices("zzz", ["node-1"]) == {"word": "zzz", "near": None, "there": ("node-1",)}
    assert refuse(BadRequest, because("a", b=1)).kind is BadRequest


def test_nothing_in_the_core_says_an_error_in_words() -> None:
    said = [
        f"{path.name}:{node.lineno}"
        for path in sorted(CORE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS
    ]
    assert said == []


def test_no_two_codes_have_one_name() -> None:
    names = Counter(name for module in reasons._MODULES for name, _ in reasons._functions(module))
    assert [name for name, number in names.items() if number > 1] == []


def test_each_fatal_error_of_a_driver_has_its_words() -> None:
    assert set(XIDS) == FATAL_XIDS


@pytest.mark.parametrize("why", ["", "a new fan; and more", because("xid", number=79)])
def test_why_a_device_is_drained_is_kept_as_data(why: Words) -> None:
    mark = DeviceMark("n1", "cuda:0", "GPU-1", True, reason=why, faults=("xid:79:1",))
    row = json.loads(json.dumps(rows.mark_to_row(mark)))
    assert row["reason"] == render_words(why)
    assert rows.mark_from_row(row) == mark
    older = rows.without_code(row)
    assert rows.mark_from_row(older).reason == render_words(why)


def test_a_mark_for_an_error_of_another_version_is_read_and_told() -> None:
    number = max(FATAL_XIDS) + 1
    mark = DeviceMark("n1", "cuda:0", "GPU-1", True, reason=because("xid", number=79))
    args = json.dumps({"number": number})
    found = rows.mark_from_row({**rows.mark_to_row(mark), "reason_args": args})
    assert render_words(found.reason) == f"Xid {number}"


@pytest.mark.parametrize(
    "said", ["", "no room; add a node", because("opened_too_early", node="n1")]
)
def test_why_an_upgrade_stopped_and_a_group_is_over_is_kept_as_data(said: Words) -> None:
    upgrade = Upgrade("root", "", 1.0, 1, (), UpgradeState.STOPPED, said)
    told = json.loads(json.dumps(admin_rows._upgrade_to_json(upgrade)))
    assert admin_rows._upgrade_from_json(told) == upgrade
    member = Member("g", 1, 2, reached="a", reached_why=said)
    assert rows.member_from_text(rows._member_text(member)) == member


def test_of_a_code_that_another_version_had_an_upgrade_and_a_group_keep_the_sentence() -> None:
    known = because("opened_too_early", node="n1")
    told = rows.words_to_json(known)
    for other in ({"code": "no_such_code"}, {"args": {"node": "n1", "since": 1.0}}):
        text = json.dumps({"group": "g", "number": 1, "members": 2, "reached_why": told | other})
        assert rows.member_from_text(text).reached_why == render_words(known)
        upgrade = Upgrade("root", "", 1.0, 1, (), UpgradeState.STOPPED, known)
        document = admin_rows._upgrade_to_json(upgrade) | {"why": told | other}
        assert admin_rows._upgrade_from_json(document).why == render_words(known)


def test_what_a_node_is_used_for_reads_the_same_in_anybodys_words() -> None:
    mark = NodeMark("n1", NodeDuty.DRAINING, "root", "a new kernel")
    assert render_duty(mark) == "is being drained by root (a new kernel)"
    gone = NodeMark("n1", NodeDuty.DRAINING, "", because("machine_goes"))
    assert render_duty(gone) == "is being drained (its machine is taken back)"
    assert render_duty(NodeMark("n1")) == "is open"
