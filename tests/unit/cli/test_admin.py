"""What the administrators' commands ask and print; the service is a double."""

from __future__ import annotations

import json
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.cli.admin import (
    changes,
    cordon,
    drain,
    give_back,
    parameters,
    quota,
    uncordon,
    upgrade,
)
from singularity_scheduler.cli.admin.drain import is_device
from singularity_scheduler.cli.admin.parameters import change
from singularity_scheduler.cli.framework.base import ServiceApp
from singularity_scheduler.cli.look import nodes
from singularity_scheduler.core.values.parameters import NAMES, Parameters, describe

Captured = pytest.CaptureFixture[str]

NODE: dict[str, Any] = {
    "id": "n1",
    "connected": True,
    "duty": "draining",
    "reason": "new kernel",
    "deadline": None,
    "overdue": False,
    "connections": 0,
    "sessions": [
        {"id": "s1", "user": "ada", "name": "nb", "state": "migrating", "reason": "leaves node n1"}
    ],
}
UPGRADE = {
    "state": "stopped",
    "why": "no room",
    "nodes": [{"node": "n1", "state": "out", "left": 0, "before": "1", "version": "1"}],
}
CLUSTER = {
    "name": "vision",
    "quota_devices": 2,
    "may_borrow": False,
    "used": 3,
    "borrowed": 1,
    "waiting": 4,
    "sessions": 5,
}


class Admin:
    """Answers every method with a document and notes the call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        async def call(*words: Any) -> Any:
            self.calls.append((name, *words))
            answer = self.answers[name]
            return answer.pop(0) if name in ("nodes", "drain_node") else answer

        return call


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()
    monkeypatch.setattr(ServiceApp, "client", lambda self, timeout=None: made)
    monkeypatch.setattr(drain, "POLL_S", 0.0)
    return made


def test_cordon_and_uncordon(admin: Admin, capsys: Captured) -> None:
    admin.answers["cordon"] = {**NODE, "duty": "cordoned"}
    assert cordon.main(["n1", "--reason", "new kernel"]) == 0
    assert capsys.readouterr().out == (
        "node n1 is cordoned (new kernel): nothing new is placed there, what is there goes on "
        "(1 session)\n"
    )
    admin.answers["uncordon"] = {**NODE, "duty": "open"}
    assert uncordon.main(["n1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["duty"] == "open"
    assert admin.calls == [("cordon", "n1", "new kernel"), ("uncordon", "n1")]


def test_drain_of_a_node_waits_until_it_is_empty(admin: Admin, capsys: Captured) -> None:
    admin.answers["drain_node"] = [NODE]
    admin.answers["nodes"] = [[NODE], [{**NODE, "duty": "drained", "sessions": []}]]
    assert drain.main(["n1", "--wait", "--deadline", "60"]) == 0
    out, err = capsys.readouterr()
    assert out == "node n1 is drained (new kernel): nothing of any session is left there\n"
    assert err == "1 session left on n1\n"
    assert admin.calls[0] == ("drain_node", "n1", "", 60.0, False, False)


def test_drain_says_what_is_left(admin: Admin, capsys: Captured) -> None:
    admin.answers["drain_node"] = [NODE]
    assert drain.main(["n1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "node n1 is draining (new kernel): 1 session still there",
        "  s1 ada/nb is migrating: leaves node n1",
    ]


def test_notice_and_return_of_a_node(admin: Admin, capsys: Captured) -> None:
    admin.answers["notice"] = {**NODE, "duty": "drained", "sessions": [], "connections": 2}
    assert drain.main(["n1", "--notice", "30"]) == 0
    assert capsys.readouterr().out.endswith("it still has 2 kernel connections\n")
    admin.answers["undrain_node"] = {**NODE, "duty": "open"}
    assert give_back.main(["n1"]) == 0
    assert admin.calls == [("notice", "n1", 30.0, ""), ("undrain_node", "n1")]
    assert drain.main(["n1", "--notice", "30", "--force"]) == 64
    assert drain.main(["n1", "--notice", "30", "--store"]) == 64
    assert drain.main(["cuda:1", "--force"]) == 64
    assert drain.main(["cuda:1", "--store"]) == 64


@pytest.mark.parametrize(
    ("word", "device"), [("cuda:3", True), ("n1/cpu:0", True), ("n1", False), ("gpu-07", False)]
)
def test_devices_and_nodes_are_told_apart(word: str, device: bool) -> None:
    assert is_device(word) is device


def test_parameters_are_shown_and_changed(admin: Admin, capsys: Captured) -> None:
    given = Parameters().as_dict()
    entries = [
        {**describe(name), "name": name, "value": given[name], "set": name == "quantum_s"}
        for name in NAMES
    ]
    admin.answers["parameters"] = admin.answers["set_parameters"] = entries
    assert parameters.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(NAMES) + 1
    assert lines[1].split()[:2] == ["idle_soft_s", "900"]
    words = ["idle_soft_s=600", "las_thresholds_device_s=[1, 2]", "quantum_s=default"]
    assert parameters.main([*words, "--reason", "why"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    wanted = {"idle_soft_s": 600, "las_thresholds_device_s": [1, 2], "quantum_s": None}
    assert admin.calls[-1] == ("set_parameters", wanted, "why")


@pytest.mark.parametrize("word", ["idle_soft_s", "=5", "idle_soft_s=soon"])
def test_a_change_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(BadRequest):
        change(word)


def test_quota(admin: Admin, capsys: Captured) -> None:
    names = ("virtual_clusters", "set_quota", "remove_virtual_cluster")
    admin.answers |= {name: [CLUSTER] for name in names}
    assert quota.main([]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *(["vision", "2", "3", "1", "4", "5", "no"])
    ]
    assert quota.main(["vision", "8", "--no-borrow", "--reason", "a grant"]) == 0
    assert quota.main(["vision", "--remove"]) == 0
    assert admin.calls[1:] == [
        ("set_quota", "vision", 8, False, "a grant"),
        (names[2], "vision"),
    ]
    assert quota.main(["vision", "many"]) == 64
    assert quota.main(["nobody"]) == 64


def test_upgrade(admin: Admin, capsys: Captured) -> None:
    names = ("upgrade", "begin_upgrade", "change_upgrade", "cancel_upgrade", "upgraded")
    admin.answers |= dict.fromkeys(names, UPGRADE)
    assert upgrade.main([]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == ["n1", "out", "0", "1", "1"]
    assert err == "the upgrade is stopped, 0 of 1 node done: no room\n"
    assert upgrade.main(["--begin", "n1", "n2", "--at-once", "2", "--wait"]) == 0
    assert upgrade.main(["--go-on", "--wait"]) == 0
    assert upgrade.main(["--pause"]) == 0
    assert upgrade.main(["--done", "n1"]) == 0
    assert upgrade.main(["--cancel"]) == 0
    assert admin.calls[1:] == [
        ("begin_upgrade", ["n1", "n2"], 2, "", True),
        ("change_upgrade", "running", True),
        ("change_upgrade", "paused", None),
        ("upgraded", "n1"),
        ("cancel_upgrade",),
    ]
    assert upgrade.main(["n1"]) == 64
    assert upgrade.main(["--done"]) == 64


def test_changes(admin: Admin, capsys: Captured) -> None:
    line = {"at": "2026-11-21T10:00:00+00:00", "by": "", "verb": "empty", "subject": "n1"}
    states = {"before": "draining", "after": {"state": "done", "nodes": {"n1": "out"}}}
    admin.answers["admin_log"] = [{**line, **states, "reason": "new kernel"}]
    assert changes.main(["n1", "-n", "5"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert "(itself)  empty  n1       draining  state done, nodes n1 out  new kernel" in row
    assert admin.calls == [("admin_log", "n1", 5)]


def test_nodes_names_those_that_are_not_open(admin: Admin, capsys: Captured) -> None:
    told = {"id": "n1", "connected": True, "duty": "cordoned", "reason": "new disks"}
    admin.answers["cluster"] = {"nodes": [told], "devices": [], "tiers": [], "waiting": {}}
    assert nodes.main([]) == 0
    assert "node n1 is cordoned (new disks)" in capsys.readouterr().err
