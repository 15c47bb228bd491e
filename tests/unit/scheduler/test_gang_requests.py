"""Runs on several nodes: what may be asked, in requests and job files, and how they are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.cli.look.views import named, session_card, session_table
from singularity_scheduler.core.values.requested import Part
from singularity_scheduler.jobs import BadJob, parse, resolve
from singularity_scheduler.jobs.exporting import job_file
from singularity_scheduler.requests.gang_spec import parts_of
from singularity_scheduler.requests.group_spec import parse_group
from singularity_scheduler.requests.spec import parse_spec
from singularity_scheduler.service.ledger import rows
from singularity_scheduler.service.nodes.peers import gang_launch
from singularity_scheduler.service.schemas.documents import iso, session_document
from support.scheduler_core import World
from support.scheduler_gangs import submit_gang

RUN = {"command": "python train.py", "folder": "/home/ada"}


def test_devices_of_all_nodes_are_divided() -> None:
    spec = parse_spec({"run": RUN, "devices": 8, "nodes": 2}, largest=4)
    assert (spec.devices, spec.nodes) == (4, 2)
    assert parse_spec({"run": RUN, "devices": 3, "nodes": 1}).nodes == 1


def test_runs_on_several_nodes_may_be_stored_by_themselves() -> None:
    request = {"run": RUN, "devices": 2, "nodes": 2}
    spec = parse_spec({**request, "checkpoint_every_s": 60, "checkpoint_every_steps": 500})
    assert (spec.every_s, spec.every_steps) == (60, 500)
    parts = parts_of(spec, "g", "s", iter("ab").__next__)
    assert [(sid, one.part) for sid, one in parts] == [
        ("a", Part("g", 0, ("a", "b"), "s")),
        ("b", Part("g", 1, ("a", "b"), "s")),
    ]
    assert "s'" not in repr(Part("g", 0, (), "s"))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"nodes": 0}, "nodes must be a whole number from 1 to 256, not 0"),
        ({"nodes": True}, "nodes must be a whole number from 1 to 256, not True"),
        ({"nodes": "2"}, "nodes must be a whole number from 1 to 256, not '2'"),
        (
            {"nodes": 2, "devices": 3},
            "3 devices cannot be divided among 2 nodes: ask for 2, 4, 6 or another multiple of 2",
        ),
        (
            {"nodes": 2},
            "1 device cannot be divided among 2 nodes: ask for 2, 4, 6 or another multiple of 2",
        ),
        (
            {"nodes": 2, "devices": 8},
            "4 devices asked, but this cluster has at most 2 for one session: ask for 1 to 2",
        ),
        (
            {"nodes": 2, "devices": 2, "run": {"notebook": "/n.ipynb"}},
            "a run on 2 nodes must be a command (run.command): a notebook runs on one node",
        ),
        (
            {"nodes": 2, "devices": 2, "run": None, "launch": {"mode": "capsule"}},
            "a run on 2 nodes must be a command (run.command): a notebook runs on one node",
        ),
        (
            {"nodes": 2, "devices": 2, "elastic": True},
            "a run on 2 nodes has no scale policy yet: leave elastic and scale_policy out, or "
            "nodes",
        ),
        (
            {"nodes": 2, "device_share": 0.5},
            "a run on 2 nodes has whole devices: leave device_share out, or nodes",
        ),
    ],
)
def test_what_does_not_go_with_nodes(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_spec({"run": RUN, **more}, largest=2)
    assert refused.value.message == sentence


def test_members_of_groups_are_on_one_node() -> None:
    request = {
        "session": {"run": RUN, "nodes": 2, "devices": 2},
        "members": [{"values": {"x": 1}, "command": "a"}],
    }
    with pytest.raises(BadRequest, match="a member of a group is on one node"):
        parse_group(request, "g")


JOB = """
type: command
command: python train.py
distribution: {{type: pytorch, process_count_per_instance: 2}}
resources:
  instance_count: 2
  properties:
    singularity: {{nodes: {nodes}}}
"""


def test_job_files_say_on_how_many_nodes(tmp_path: Path) -> None:
    job = resolve(parse(JOB.format(nodes=2), str(tmp_path / "job.yml")))
    assert (job.wishes["nodes"], job.wishes["devices"]) == (2, 4)
    stored = JOB.replace("{{nodes: {nodes}}}", "{{nodes: {nodes}, checkpoint_every_s: 600}}")
    wishes = resolve(parse(stored.format(nodes=2), str(tmp_path / "job.yml"))).wishes
    assert (wishes["nodes"], wishes["checkpoint_every_s"]) == (2, 600)
    with pytest.raises(BadJob, match="nodes is not what it must be: at least 1"):
        resolve(parse(JOB.format(nodes=0), str(tmp_path / "job.yml")))
    sweep = JOB.format(nodes=2).replace("train.py", "train.py ${{search_space.lr}}")
    both = parse(f"{sweep}sweep:\n  search_space: {{lr: [1, 2]}}\n", str(tmp_path / "job.yml"))
    with pytest.raises(BadJob, match="line 8: the runs of a sweep are on one node each"):
        resolve(both)


def gang() -> World:
    world = World(2, "a")
    world.join("b", 2)
    submit_gang(world, "g", devices=2, max_retries=1)
    return world


def test_a_job_file_of_a_part_describes_all(tmp_path: Path) -> None:
    world = gang()
    document = session_document(world.state, world["g1"])
    for ranked in (True, False):
        document["run"]["ranked"] = ranked
        document["run"]["folder"] = str(tmp_path)
        text = job_file(document, lambda name: True)
        again = resolve(parse(text, str(tmp_path / "job.yml")))
        assert (again.wishes["nodes"], again.wishes["devices"], again.ranked) == (2, 4, ranked)


def test_a_part_is_kept_and_shown_without_its_secret() -> None:
    world = gang()
    view = world["g1"]
    again = rows.session_from_row(rows.session_to_row(view), view.devices)
    assert again.part == view.part
    assert again.part is not None
    assert again.part.secret == "secret of g"
    assert rows.session_from_row({**rows.session_to_row(view), "part": None}, ()).part is None
    document = session_document(world.state, view)
    assert document["part"] == {
        "gang": "g",
        "number": 1,
        "parts": 2,
        "sessions": ["g0", "g1"],
    }
    assert "secret" not in json.dumps(document)
    assert "secret" not in repr(view)


def test_people_see_which_part_it_is() -> None:
    world = gang()
    document = session_document(world.state, world["g1"])
    assert named(document) == "g1 (2 of 2 nodes)"
    now = datetime.fromisoformat(str(iso(world.now)))
    card = session_card(document, now)
    assert ("Gang", "part 1 of gang g on 2 nodes, with g0") in card.rows
    assert "g1 (2 of 2 nodes)" in session_table([document], now, "none").rows[0]


def test_the_key_of_a_gang_is_that_of_its_attempt() -> None:
    world = gang()
    first, second = (gang_launch(world[sid]) for sid in ("g0", "g1"))
    assert first is not None
    assert second is not None
    assert first == {"id": "g", "number": 0, "parts": 2, "key": first["key"]}
    assert (second["key"], second["number"]) == (first["key"], 1)
    assert len(bytes.fromhex(first["key"])) == 32
    later = gang_launch(replace(world["g0"], attempt=2))
    assert later is not None
    assert later["key"] != first["key"]
    assert gang_launch(replace(world["g0"], part=None)) is None
