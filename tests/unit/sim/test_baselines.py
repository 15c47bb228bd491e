"""The baselines on workloads small enough to be computed by hand, and what holds for all."""

from __future__ import annotations

import random
from math import inf

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation.claims import Claim
from singularity_scheduler.sim.baselines import BASELINES
from singularity_scheduler.sim.baselines.fifo import Fifo, Reserve
from singularity_scheduler.sim.baselines.kill import Kill
from singularity_scheduler.sim.baselines.maxmin import MaxMin, fill
from singularity_scheduler.sim.baselines.shortest import Estimates, Sjf, Srtf, SrtfEstimated
from singularity_scheduler.sim.baselines.tiresias import Tiresias
from singularity_scheduler.sim.traces.records import Job
from support.replays import batch, ends, notebook, replay

MIXED = [batch(0, 0, 10, 2), batch(1, 1, 5, 2), batch(2, 2, 1, 1)]


def test_fifo_lets_nobody_overtake() -> None:
    record = replay(Fifo(), [batch(0, 0, 10), batch(1, 1, 5, 2), batch(2, 2, 1)], (2,))
    assert ends(record) == {0: 10, 1: 15, 2: 16}
    assert list(record.job_wait_s) == [0, 9, 13]


def test_sjf_takes_the_shortest_and_waits_for_room() -> None:
    assert ends(replay(Sjf(), MIXED, (2,))) == {0: 10, 1: 16, 2: 11}


def test_srtf_takes_devices_from_longer_ones() -> None:
    record = replay(Srtf(), MIXED, (2,))
    assert ends(record) == {0: 16, 1: 7, 2: 3}
    assert record.preemptions == 2


@pytest.mark.parametrize(("work_s", "end"), [(5.0, {0: 18.0, 1: 7.0}), (6.0, {0: 10.0, 1: 16.0})])
def test_srtf_counts_what_a_preemption_costs(work_s: float, end: dict[int, float]) -> None:
    jobs = [batch(0, 0, 10), batch(1, 1, work_s)]
    assert ends(replay(Srtf(), jobs, (1,), (1, 2, 2))) == end


def test_a_wide_job_gathers_devices_of_several_nodes() -> None:
    jobs = [batch(0, 0, 100), batch(1, 0, 90), batch(2, 1, 10, 3)]
    record = replay(Srtf(), jobs, (2, 2))
    # Two devices are free: one more is enough, that of the one who has longest to go.
    assert ends(record) == {0: 110, 1: 90, 2: 11}
    assert record.preemptions == 1


def test_estimates_come_from_the_nearest_history() -> None:
    known = Estimates(unknown_s=50)
    one = Claim("a", 1, virtual_cluster="x")
    assert known.of(one) == 50
    known.learn(one, 10)
    known.learn(Claim("b", 1, virtual_cluster="y"), 30)
    assert known.of(one) == 10
    assert known.of(Claim("c", 1, virtual_cluster="z")) == 20
    assert known.of(Claim("d", 4, virtual_cluster="x")) == 20


def test_srtf_without_an_oracle_doubles_what_was_expected() -> None:
    # Both are expected to take an hour. When the first one has, it is expected to take another.
    jobs = [batch(0, 0, 5000), batch(1, 100, 3000)]
    assert ends(replay(SrtfEstimated(), jobs)) == {0: 5000, 1: 8000}
    # Once one of 300 s has ended, 300 s are expected of all. The second is expected to take 600 s
    # when it has taken 300, and 1200 s when it has taken 600: the third goes first then.
    jobs = [batch(0, 0, 300, 2), batch(1, 300, 5000), batch(2, 310, 300, 2)]
    assert ends(replay(SrtfEstimated(), jobs, (2,))) == {0: 300, 1: 5600, 2: 1200}


def test_tiresias_demotes_by_attained_service() -> None:
    assert ends(replay(Tiresias("", (4.0,)), [batch(0, 0, 10), batch(1, 1, 3)])) == {0: 13, 1: 7}
    # On 2 devices after half of that time, so the second one is demoted too, and behind the first.
    wide = [batch(0, 0, 10, 2), batch(1, 1, 3, 2)]
    assert ends(replay(Tiresias("", (4.0,)), wide, (2,))) == {0: 12, 1: 13}


def test_tiresias_promotes_who_starves_when_told_to() -> None:
    jobs = [batch(0, 0, 8), batch(1, 1, 4), batch(2, 7, 4), batch(3, 9, 4)]
    assert ends(replay(Tiresias("", (4.0,)), jobs)) == {0: 20, 1: 8, 2: 12, 3: 16}
    promoted = Tiresias("", (4.0,), promote=1.0)  # after 4 s, before the last one came
    assert ends(replay(promoted, jobs)) == {0: 16, 1: 8, 2: 12, 3: 20}


def test_max_min_shares_time_in_rounds() -> None:
    jobs = [batch(0, 0, 20), batch(1, 0, 20)]
    assert ends(replay(MaxMin("", 10.0), jobs)) == {0: 30, 1: 40}


def test_max_min_gives_equal_devices_over_time() -> None:
    assert fill([1, 1, 4], 4) == 2
    assert fill([2, 2], 10) == 2
    assert fill([3, 3], 3) == 1.5
    assert fill([], 3) == 0


def test_reserve_puts_notebooks_first_and_holds_for_them() -> None:
    jobs = [batch(0, 0, 10), batch(1, 1, 5), notebook(2, 2, ((0, 2), (10, 3)), 5)]
    record = replay(Reserve(), jobs)
    assert ends(record) == {0: 10, 1: 35, 2: 30}
    assert (list(record.first_wait_s), list(record.cell_wait_s)) == ([8], [])
    assert record.cells_at_once == 1
    assert record.held_device_s == 35
    assert ends(replay(Fifo(), jobs)) == {0: 10, 1: 15, 2: 35}


def test_killed_jobs_begin_again() -> None:
    jobs = [batch(0, 0, 10, tier="basic"), batch(1, 3, 4, tier="premium")]
    record = replay(Kill(), jobs)
    assert ends(record) == {0: 17, 1: 7}
    assert record.redone_device_s == 3
    kept = replay(Kill(checkpoint_s=2.0), jobs)
    assert ends(kept) == {0: 15, 1: 7}
    assert kept.redone_device_s == 1


def test_a_killed_notebook_runs_its_cells_again() -> None:
    jobs = [notebook(0, 0, ((0, 2), (4, 3)), 1, "basic"), batch(1, 3, 2, tier="premium")]
    record = replay(Kill(), jobs)
    assert ends(record) == {0: 12, 1: 5}
    assert record.redone_device_s == 2
    jobs[1] = batch(1, 7, 2, tier="premium")  # in the middle of its second cell
    record = replay(Kill(), jobs)
    assert ends(record) == {0: 15, 1: 9}
    assert record.redone_device_s == 3


def workload(seed: int) -> list[Job]:
    rng = random.Random(seed)
    jobs, at = [], 0.0
    for number in range(150):
        at += rng.expovariate(1 / 60)
        tier = rng.choice(("premium", "standard", "basic"))
        if rng.random() < 0.1:
            cells = tuple((rng.uniform(0, 400), rng.uniform(1, 300)) for _ in range(4))
            jobs.append(notebook(number, at, cells, 100, tier))
        else:
            devices = rng.choice((1, 1, 1, 2, 4, 8, 12))
            jobs.append(batch(number, at, rng.lognormvariate(5.5, 1.5), devices, tier))
    return jobs


@pytest.mark.parametrize("name", BASELINES)
def test_every_job_ends_and_no_work_is_lost_unseen(name: str) -> None:
    jobs = workload(7)
    one = BASELINES[name].make()
    record = replay(one, jobs, (8, 8, 4), (10, 5, 20))
    assert record.finished == len(jobs)
    asked = sum(job.work_s * job.devices for job in jobs)
    assert record.worked_device_s - record.redone_device_s == pytest.approx(asked)
    assert record.held_device_s <= record.capacity_device_s
    assert record.held_device_s == pytest.approx(sum(record.job_attained_device_s), rel=0.05)
    assert (one.held, one.state.claims, one.ranks) == (0, {}, {})
    pool = one.state.pools[""]
    assert pool.total == [20] * len(pool.total)
    again = replay(BASELINES[name].make(), jobs, (8, 8, 4), (10, 5, 20))
    assert again.job_end_s == record.job_end_s


@pytest.mark.parametrize("name", ["srtf-oracle", "srtf", "tiresias", "maxmin", "kill"])
def test_a_lost_node_takes_no_job_with_it(name: str) -> None:
    from singularity_scheduler.sim.record import Record
    from singularity_scheduler.sim.replay import Costs, Replay

    jobs = [job for job in workload(3) if job.devices <= 8]
    one, record = BASELINES[name].make(), Record()
    run = Replay([one], Costs(10, 5, 20, checkpoint_s=inf), record)
    run.nodes(0, [ev.NodeUp("a", 8), ev.NodeUp("b", 8)])
    run.run(jobs[:60], until_s=2000)
    run.tell(0, ev.NodeLost("b"))
    run.tell(0, ev.Cordon("a"))
    run.tell(0, ev.Uncordon("a"))
    run.run(())
    assert record.losses > 0
    assert record.finished == record.submissions
    assert one.held == 0


def test_baselines_refuse_what_they_do_not_know() -> None:
    with pytest.raises(BadRequest, match="not told of Quota"):
        Fifo().decide(ev.Quota("x", 3), 0.0)
