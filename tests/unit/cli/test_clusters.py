"""`jupyter singularity clusters`, and clusters in the tables of sessions and nodes."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from singularity_scheduler.cli.framework.base import ServiceApp, split_names
from singularity_scheduler.cli.look import clusters
from singularity_scheduler.cli.look.views import (
    cluster_table,
    device_table,
    session_card,
    session_table,
)
from singularity_scheduler.cli.moves import migrate
from support.cli_double import Double, session

Captured = pytest.CaptureFixture[str]

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)


def sums(nodes: int, sessions: int, **waiting: int) -> dict[str, Any]:
    return {
        "nodes": nodes,
        "connected": nodes,
        "devices": 8 * nodes,
        "free": nodes,
        "largest": 8,
        "sessions": sessions,
        "waiting": {"premium": 0, "standard": 0, "basic": 0, **waiting},
    }


FOUND = {
    "home": "local",
    "locations": ["east-1", "us", "west-1", "west-2", "westus"],
    "regions": [
        {"name": "east-1", "within": None, "clusters": ["east-1"], **sums(1, 2)},
        {"name": "westus", "within": "us", "clusters": ["west-1", "west-2"], **sums(3, 9, basic=4)},
    ],
    "clusters": [
        {"name": "east-1", "region": "east-1", **sums(1, 2)},
        {"name": "west-1", "region": "westus", **sums(1, 5)},
        {"name": "west-2", "region": "westus", **sums(2, 4, basic=4)},
    ],
}


class Clusters(Double):
    async def clusters(self) -> dict[str, Any]:
        return FOUND


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    made = Clusters(session(1))
    monkeypatch.setattr(ServiceApp, "client", lambda self, timeout=None: made)
    return made


def test_clusters_by_region_and_what_sessions_may_name(double: Clusters, capsys: Captured) -> None:
    assert clusters.main([]) == 0
    shown = capsys.readouterr()
    assert "west-2" in shown.out
    assert "sessions may name as locations: east-1, us, west-1, west-2, westus" in shown.err
    assert clusters.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == FOUND
    assert cluster_table(FOUND).rows == [
        ["east-1", "east-1", "1 of 1", "8", "1", "2", "nobody"],
        ["westus (us)", "west-1", "1 of 1", "8", "1", "5", "nobody"],
        ["westus (us)", "west-2", "2 of 2", "16", "2", "4", "4 basic"],
        ["westus (us)", "all 2", "3 of 3", "24", "3", "9", "4 basic"],
    ]


def test_two_places_to_move_to_are_refused(double: Clusters, capsys: Captured) -> None:
    assert migrate.main(["0001", "--cluster=west-1", "--node=n"]) != 0
    assert "--node and --cluster cannot be given together" in capsys.readouterr().err
    assert not [call for call in double.calls if call[0] == "migrate"]


def test_clusters_are_shown_where_there_are_several() -> None:
    west = {"cluster": "west-1", "region": "westus", "locations": ["westus", "east-1"]}
    one, other = session(1, **west), session(2, cluster="east-1", region="east-1")
    assert "cluster" not in session_table([one, one], NOW).plain()
    lines = session_table([one, other], NOW).plain()
    assert "west-1" in lines
    assert "east-1" in lines
    card = dict(session_card(one, NOW).rows)
    assert (card["Cluster"], card["May be in"]) == ("west-1 (westus)", "westus, east-1")
    nodes = [
        {"id": "n1", "connected": True, "cluster": "west-1", "region": "westus"},
        {"id": "n2", "connected": False, "cluster": None, "region": None},
    ]
    assert device_table({"nodes": nodes}).rows[0][:2] == ["n1", "yes"]
    more = [*nodes, {"id": "n3", "connected": True, "cluster": "east-1", "region": "east-1"}]
    assert [row[:3] for row in device_table({"nodes": more}).rows] == [
        ["n1", "west-1 (westus)", "yes"],
        ["n2", "", "no"],
        ["n3", "east-1", "yes"],
    ]


def test_names_are_separated_by_commas() -> None:
    assert split_names(" westus, east-1 ,") == ["westus", "east-1"]
    assert split_names("") == []
