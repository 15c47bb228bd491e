"""Replays of our policy small enough to be computed by hand: work, cells, costs, losses, fleets."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.sim.fleet import MAX_NODES, Fleet, Shape
from singularity_scheduler.sim.record import Record
from singularity_scheduler.sim.replay import Costs, Replay
from singularity_scheduler.sim.schedulers import Policy
from singularity_scheduler.sim.traces.records import Job
from support.allocations import quiet
from support.replays import batch, ends, notebook, replay

COSTS = (3.0, 5.0, 20.0)
"""Out, back on the same node, back on another one."""


def policy(**changed: Any) -> Policy:
    return Policy(quiet(**changed))


def test_jobs_end_when_their_work_is_done() -> None:
    record = replay(policy(), [batch(0, 0, 10), batch(1, 2, 5), batch(2, 30, 1)])
    assert ends(record) == {0: 10, 1: 15, 2: 31}
    assert list(record.job_wait_s) == [0, 8, 0]
    assert (record.worked_device_s, record.held_device_s) == (16, 16)
    assert record.capacity_device_s == 31


def test_who_is_preempted_pays_the_way_out_and_back() -> None:
    jobs = [batch(0, 0, 100, tier="basic"), batch(1, 10, 50, tier="premium")]
    record = replay(policy(), jobs, costs=COSTS)
    # 1 has the device at 13 and starts there at once; 0 is back at 63 + 5, with 90 s to go.
    assert ends(record) == {1: 63, 0: 158}
    assert (record.preemptions, record.rules["preempt.tier"], record.redone_device_s) == (1, 1, 0)
    assert record.held_device_s == 158


def test_the_way_back_on_another_node_is_longer() -> None:
    jobs = [
        batch(0, 0, 100, tier="basic"),
        batch(2, 0, 30, tier="premium"),
        batch(1, 10, 500, tier="premium"),
    ]
    record = replay(policy(), jobs, (1, 1), COSTS)
    # 0 leaves for 1, and goes to the node of 2 when that is done: it is there at 30 + 20.
    assert ends(record) == {2: 30, 0: 140, 1: 513}


def test_a_job_on_fewer_devices_works_slower() -> None:
    jobs = [batch(1, 0, 40, 2, "premium"), Job(0, "e", 0, 100, 4, min_devices=1)]
    record = replay(policy(), jobs, (4,), COSTS)
    # On 2 of 4 devices until 40: half of 40 s is done. Growing takes 3 + 5; then all of the rest.
    assert ends(record) == {1: 40, 0: 128}
    assert record.resizes == 1


def test_a_notebook_gives_its_devices_up_between_cells() -> None:
    night = notebook(0, 0, ((0, 10), (1000, 10)), 50)
    record = replay(policy(idle_soft_s=100.0), [night], costs=COSTS)
    # Cell, idle from 10, put away at 110 (until 113), asked for at 1010 and back at 1015.
    assert ends(record) == {0: 1010 + 5 + 10 + 50}
    assert (record.cells, record.cells_at_once) == (2, 0)
    assert (list(record.first_wait_s), list(record.cell_wait_s)) == ([0], [5])
    assert record.held_device_s == 113 + 65
    assert record.rules["idle.reclaim"] == 1


def test_short_pauses_keep_the_devices() -> None:
    record = replay(policy(idle_soft_s=100.0), [notebook(0, 5, ((2, 10), (99, 10)), 1)])
    assert ends(record) == {0: 5 + 2 + 10 + 99 + 10 + 1}
    assert (record.cells_at_once, record.preemptions) == (1, 0)


def test_others_have_a_notebook_s_devices_while_it_is_idle() -> None:
    jobs = [notebook(0, 0, ((0, 10), (200, 10)), 0), batch(1, 20, 60)]
    record = replay(policy(), jobs, costs=COSTS)
    assert ends(record) == {1: 83, 0: 225}
    assert record.rules["preempt.idle"] == 1


def test_a_cell_that_finds_the_devices_taken_waits_for_them() -> None:
    jobs = [notebook(0, 0, ((0, 10), (20, 10)), 0), batch(1, 15, 50)]
    record = replay(policy(), jobs, costs=COSTS)
    assert ends(record) == {1: 68, 0: 68 + 5 + 10}
    assert list(record.cell_wait_s) == [68 + 5 - 30]


def lost(checkpoint_s: float) -> tuple[Record, Replay]:
    record = Record()
    run = Replay([policy()], Costs(*COSTS, checkpoint_s), record)
    run.nodes(0, [ev.NodeUp("n0", 1), ev.NodeUp("n1", 1)])
    run.run([batch(0, 0, 100)], until_s=25)
    run.now = 70.0
    [node] = [n.id for n in run.schedulers[0].state.pools[""].nodes if n.holders]
    run.tell(0, ev.NodeLost(node))
    run.run([])
    return record, run


@pytest.mark.parametrize(("checkpoint_s", "redone"), [(30.0, 10), (1000.0, 70), (70.0, 0)])
def test_a_lost_node_costs_the_work_since_the_last_checkpoint(
    checkpoint_s: float, redone: float
) -> None:
    record, _ = lost(checkpoint_s)
    assert ends(record) == {0: pytest.approx(70 + 20 + 30 + redone)}
    assert record.redone_device_s == pytest.approx(redone)
    assert record.worked_device_s == pytest.approx(100 + redone)
    assert record.losses == 1


def test_a_replay_may_be_cut() -> None:
    record = Record()
    run = Replay([policy()], Costs(), record)
    run.nodes(0, [ev.NodeUp("n0", 1)])
    run.run([batch(0, 0, 10), batch(1, 0, 100), batch(2, 500, 1)], until_s=50)
    assert (record.finished, run.alive, run.now) == (1, 1, 10)


def mixed(seed: int, jobs: int = 150) -> list[Job]:
    r, at, made = Random(seed), 0.0, list[Job]()
    for number in range(jobs):
        at += r.expovariate(1 / 40)
        tier = r.choice(("premium", "standard", "basic"))
        if r.random() < 0.3:
            cells = tuple((r.uniform(0, 600), r.uniform(1, 60)) for _ in range(r.randint(1, 4)))
            made.append(notebook(number, at, cells, 30, tier=tier))
        else:
            made.append(batch(number, at, r.uniform(1, 900), r.choice((1, 1, 2, 4, 12)), tier))
    return made


def test_the_same_trace_gives_the_same_record() -> None:
    one, two = (replay(Policy(Parameters()), mixed(7), (4, 8, 8), COSTS) for _ in range(2))
    assert ends(one) == ends(two)
    assert one.rules == two.rules
    assert one.finished == 150


@pytest.mark.parametrize("seed", range(3))
def test_no_work_is_lost_or_made_up(seed: int) -> None:
    jobs = mixed(seed)
    record = replay(Policy(Parameters()), jobs, (4, 8, 8), COSTS)
    asked = sum(job.work_s * job.devices for job in jobs)
    assert record.finished == len(jobs)
    assert record.worked_device_s == pytest.approx(asked)
    assert asked <= record.held_device_s <= record.capacity_device_s


# -- fleets -----------------------------------------------------------------------------------


def test_a_fleet_has_nodes_of_equal_clusters() -> None:
    shape = Shape(100, per_node=8, clusters=3, regions=2, per_rack=2)
    assert (shape.nodes, shape.capacity) == (4, 96)
    up = list(shape.of_cluster("c"))
    assert [node.rack for node in up] == ["c-rack0", "c-rack0", "c-rack1", "c-rack1"]
    assert {node.islands for node in up} == {(0x0F, 0xF0)}


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ({"devices": 0}, "devices must be at least 1"),
        ({"devices": 64, "clusters": 1, "regions": 2}, "cannot be in 2 regions"),
        ({"devices": 7}, "do not fill one node"),
        ({"devices": 8 * (MAX_NODES + 1)}, "at least 2 clusters"),
    ],
)
def test_what_fleets_cannot_be(shape: dict[str, int], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        Shape(**shape)


def in_fleet(jobs: list[Job], relocate_after_s: float = 0.0, **shape: int) -> tuple[Fleet, Record]:
    fleet, record = Fleet(Shape(**shape), quiet(relocate_after_s=relocate_after_s)), Record()
    fleet.replay(Costs(*COSTS), record).run(jobs)
    return fleet, record


def test_jobs_of_a_fleet_go_where_there_is_room() -> None:
    jobs = [batch(n, 0, 100, 4) for n in range(4)]
    fleet, record = in_fleet(jobs, devices=16, per_node=4, clusters=4, regions=2)
    assert ends(record) == dict.fromkeys(range(4), 100)
    assert fleet.routed == 4


def test_a_job_goes_only_where_it_may() -> None:
    jobs = [batch(n, 0, 100, 4) for n in range(3)]
    for job in jobs:
        job.locations = ("region1-cluster1",)
    _, record = in_fleet(jobs, devices=8, per_node=4, clusters=2, regions=2)
    assert ends(record) == {0: 100, 1: 200, 2: 300}


TWO = {"devices": 8, "per_node": 4, "clusters": 2, "regions": 2}


def full_then_free() -> list[Job]:
    """Both clusters are full and others wait in both; then one of them is empty for long."""
    long, short = batch(0, 0, 9000, 4), batch(1, 0, 100, 4)
    return [long, short, batch(2, 10, 50, 4), batch(3, 20, 50, 4), batch(4, 30, 1000, 4)]


def test_who_waits_goes_to_another_cluster_that_is_free() -> None:
    _, stays = in_fleet(full_then_free(), **TWO)
    _, goes = in_fleet(full_then_free(), 60.0, **TWO)
    assert (stays.relocations, goes.relocations) == (0, 2)
    assert max(ends(stays).values()) > 9000
    assert sorted(ends(goes).values()) == [100, 150, 230, 1240, 9000]


def test_somebody_looks_as_long_as_somebody_waits() -> None:
    """Although nothing comes or goes meanwhile."""
    jobs = [batch(0, 0, 9000, 4), batch(1, 0, 400, 4), batch(2, 10, 50, 4), batch(3, 20, 50, 4)]
    _, record = in_fleet(jobs, 600.0, **TWO)
    assert record.relocations == 1
    assert ends(record)[2] < 1000


def test_nobody_goes_where_it_may_not_be() -> None:
    jobs = full_then_free()
    for job in jobs:
        job.locations = ("region0",) if job.id in (0, 2, 3, 4) else ("region1",)
    _, record = in_fleet(jobs, 60.0, **TWO)
    assert record.relocations == 0
    assert max(ends(record).values()) == 9000 + 50 + 50 + 1000


@pytest.mark.parametrize("clusters", [1, 2])
def test_a_job_that_no_cluster_can_run_is_refused(clusters: int) -> None:
    jobs = [batch(0, 0, 1, 9), batch(1, 1, 1, 4)]
    fleet, record = in_fleet(jobs, devices=8 * clusters, per_node=4, clusters=clusters)
    assert (record.refusals, ends(record)) == (1, {1: 2})
    assert fleet.refused


def test_a_fleet_decides_the_same_twice() -> None:
    shape = {"devices": 48, "per_node": 4, "clusters": 3, "regions": 2}
    one, two = (in_fleet(mixed(3), **shape)[1] for _ in range(2))
    assert ends(one) == ends(two)
    assert one.finished == 150
