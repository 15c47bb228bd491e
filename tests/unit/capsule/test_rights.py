"""Root that may not do what root may: what it lacks is said, not what comes of that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from singularity_proxy.capsule import namespace, rights
from singularity_scheduler.fleet import namespaces

LACKS = "root has no CAP_SYS_ADMIN here (a container has it with --cap-add SYS_ADMIN)"


@pytest.fixture(params=["of a container", "whole", "none told"])
def lacks(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is missing, of a process that is root and whose rights are these."""
    rights_of = {
        "of a container": "CapPrm:\t000001ffffffffff\nCapEff:\t00000000a80425fb\n",
        "whole": "CapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffffff\n",
        "none told": "Name:\tpython\n",
    }
    status = tmp_path / "status"
    status.write_text(rights_of[request.param])
    monkeypatch.setattr(rights, "_STATUS", status)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return LACKS if request.param == "of a container" else ""


def test_what_root_lacks(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rights.missing_right() == lacks
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert rights.missing_right() == ""


@pytest.mark.parametrize("refused", ["both", "own uids alone"])
def test_why_capsules_have_no_namespaces(
    lacks: str, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(_: Path, user_namespace: bool) -> str:
        why = "'namespaces' is refused here (Operation not permitted)"
        return "" if user_namespace and refused != "both" else why

    monkeypatch.setattr(namespace, "_holder", lambda: Path("holder"))
    monkeypatch.setattr(namespace, "_try", attempt)
    otherwise = {
        "both": "'namespaces' is refused here (Operation not permitted)",
        "own uids alone": "this node's root may not make namespaces for other users",
    }
    found = namespace.probe()
    assert found == (None, f"capsules have no namespaces: {lacks or otherwise[refused]}.")


def test_why_nodes_have_no_network_of_their_own(
    lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert namespaces.why_not() == (lacks or "the program ip (package iproute2) is not installed")
