"""The synthetic workloads have the statistics that their modules say they are fitted to."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.sim.traces import arrivals
from singularity_scheduler.sim.traces.curves import Curve, deal, mean_of
from singularity_scheduler.sim.traces.notebooks import Sessions, notebooks
from singularity_scheduler.sim.traces.records import Job
from singularity_scheduler.sim.traces.synthetic import Workload, generate, synthetic
from singularity_scheduler.sim.traces.tiers import ideal_s

MINUTE = 60.0
DAY = 86_400.0


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


# ---- curves --------------------------------------------------------------------------------------


def test_a_curve_keeps_its_mean_in_few_slices() -> None:
    curve = Curve(((0.0, 1.0), (0.5, 10.0), (0.9, 500.0), (1.0, 90_000.0)))
    exact = statistics.mean(curve.table(400_000))
    for slices in (1, 7, 100):
        assert statistics.mean(mean_of(*s) for s in curve.strata(slices)) == pytest.approx(
            exact, rel=1e-3
        )
    assert curve.at(0.5) == 10.0
    assert curve.at(0.25) == pytest.approx(10**0.5)


def test_a_lognormal_curve() -> None:
    curve = Curve.lognormal(100, 1.5)
    assert curve.at(0.5) == pytest.approx(100)
    assert curve.at(0.975) == pytest.approx(100 * 2.71828 ** (1.96 * 1.5), rel=0.01)
    assert min(Curve.lognormal(3, 2.0, lowest=2.0, highest=5.0).table(99)) == 2.0


def test_deal_gives_every_card_once_a_round() -> None:
    cards = deal(random.Random(1), list(range(10)))
    first, second = [next(cards) for _ in range(10)], [next(cards) for _ in range(10)]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


# ---- arrivals ------------------------------------------------------------------------------------


def test_arrivals_are_bursty_as_in_philly() -> None:
    hours = 2_616
    jobs = 31 * hours
    moments = list(arrivals.times(random.Random(3), jobs, hours * 3600.0))
    assert len(moments) == jobs
    assert moments[0] == 0.0
    assert moments == sorted(moments)
    assert moments[-1] < hours * 3600
    counts = Counter(int(at // 3600) for at in moments)
    by_hour = [counts[hour] / 31 for hour in range(hours)]
    assert 10 <= quantile(by_hour, 0.99) <= 15  # 12.6 in Philly
    assert 26 <= max(by_hour) <= 34  # 33
    by_time = Counter(int(at // 3600) % 24 for at in moments)
    best = sum(by_time[h] for h in range(3, 10))
    worst = sum(by_time[h] for h in range(15, 22))
    assert 1.5 <= best / worst <= 5


@pytest.mark.parametrize("jobs", [1, 2, 50])
@pytest.mark.parametrize("span_s", [1.0, 3600.0, 1e6])
def test_few_arrivals(jobs: int, span_s: float) -> None:
    moments = list(arrivals.times(random.Random(0), jobs, span_s))
    assert len(moments) == jobs
    assert moments[0] == 0.0 <= moments[-1] < span_s


# ---- notebooks -----------------------------------------------------------------------------------


def test_sessions_fit_the_published_statistics() -> None:
    sessions = Sessions(random.Random(5), deck=1024)
    drawn = [sessions.next() for _ in range(3 * 1024)]
    pauses = [idle for cells, _ in drawn for idle, _ in cells]
    busy = [sum(cell for _, cell in cells) for cells, _ in drawn]
    whole = [sum(i + b for i, b in cells) + linger for cells, linger in drawn]
    assert quantile(pauses, 0.5) == pytest.approx(3 * MINUTE, rel=0.05)
    assert quantile(pauses, 0.75) == pytest.approx(7 * MINUTE, rel=0.05)
    assert quantile(pauses, 0.9) == pytest.approx(35 * MINUTE, rel=0.1)
    assert quantile(pauses, 0.95) == pytest.approx(194 * MINUTE, rel=0.1)
    assert quantile(pauses, 0.99) == pytest.approx(2.7 * DAY, rel=0.1)
    assert sum(busy) / sum(whole) == pytest.approx(0.249, abs=0.02)
    fractions = [b / w for b, w in zip(busy, whole, strict=True)]
    assert statistics.median(fractions) == pytest.approx(0.14, abs=0.02)
    assert len(pauses) / len(drawn) == pytest.approx(30_909 / 337, rel=0.1)
    assert statistics.mean(whole) == pytest.approx(14.3 * DAY, rel=0.1)
    assert all(cells and linger >= 0 for cells, linger in drawn)
    assert max(whole) <= 40 * DAY
    assert min(b for cells, _ in drawn for _, b in cells) == 60.0


@pytest.mark.parametrize(("devices", "days"), [(866, 14.0), (100, 30.0), (7, 2.0), (1, 1.0)])
def test_the_notebook_cluster(devices: int, days: float) -> None:
    trace = notebooks(devices, days, seed=2)
    jobs = list(trace)
    span_s = days * DAY
    assert [job.id for job in jobs] == list(range(len(jobs)))
    assert jobs[0].submit_s == 0
    assert all(a.submit_s <= b.submit_s for a, b in pairwise(jobs))
    assert len({job.name for job in jobs}) == len(jobs)
    assert all(job.cells and min(min(cell) for cell in job.cells) >= 0 for job in jobs)
    assert all(job.work_s == pytest.approx(sum(b for _, b in job.cells)) for job in jobs)
    ends = [job.submit_s + ideal_s(job) for job in jobs]
    assert max(ends) == pytest.approx(span_s)
    reserved = sum(job.devices * ideal_s(job) for job in jobs)
    assert reserved == pytest.approx(devices * span_s)
    assert {job.devices for job in jobs} <= {1, 4, 8}
    for at in (0.0, span_s / 3, span_s * 0.9):
        open_now = [j for j, end in zip(jobs, ends, strict=True) if j.submit_s <= at < end - 1e-6]
        assert sum(job.devices for job in open_now) == devices
    if devices >= 100:
        busy = sum(job.devices * job.work_s for job in jobs)
        assert busy / reserved == pytest.approx(0.249, abs=0.002)
        places = sum(ideal_s(job) for job in jobs) / span_s
        assert places == pytest.approx(devices * 161 / 866, abs=0.51)
        pauses = [idle for job in jobs for idle, _ in job.cells]
        assert quantile(pauses, 0.5) == pytest.approx(3 * MINUTE, rel=0.15)
        assert quantile(pauses, 0.75) == pytest.approx(7 * MINUTE, rel=0.15)
        assert quantile(pauses, 0.9) == pytest.approx(35 * MINUTE, rel=0.35)
        assert 100 * MINUTE <= quantile(pauses, 0.95) <= 320 * MINUTE
    assert list(trace) == jobs
    assert list(notebooks(devices, days, seed=3)) != jobs


@pytest.mark.parametrize(("devices", "days"), [(0, 7.0), (866, 0.0), (866, float("nan"))])
def test_no_such_notebook_cluster(devices: int, days: float) -> None:
    with pytest.raises(BadRequest, match=r"give (at least 1|from half a day to ten years)"):
        notebooks(devices, days)


# ---- the mix -------------------------------------------------------------------------------------

PHILLY = Workload(devices=2_500, jobs=82_247, notebook_share=0.0)


@pytest.fixture(scope="module")
def batch_jobs() -> list[Job]:
    return list(generate(PHILLY))


def test_batch_jobs_fit_philly(batch_jobs: list[Job]) -> None:
    runs = [job.work_s for job in batch_jobs]
    assert quantile(runs, 0.25) == pytest.approx(115, rel=0.15)
    assert quantile(runs, 0.5) == pytest.approx(1_144, rel=0.1)
    assert quantile(runs, 0.75) == pytest.approx(2_932, rel=0.15)
    assert quantile(runs, 0.9) == pytest.approx(11_264, rel=0.2)
    assert quantile(runs, 0.95) == pytest.approx(43_642, rel=0.2)
    assert quantile(runs, 0.99) == pytest.approx(254_611, rel=0.3)
    assert statistics.mean(runs) == pytest.approx(13_136, rel=0.2)
    hours = sum(job.work_s * job.devices for job in batch_jobs) / 3600
    assert hours == pytest.approx(978_078, rel=0.12)
    sizes = Counter(job.devices for job in batch_jobs)
    assert sizes[1] / len(runs) == pytest.approx(76_627 / 82_247, abs=0.005)
    for size, jobs in ((2, 1_818), (4, 1_870), (8, 1_643)):
        assert sizes[size] == pytest.approx(jobs, rel=0.1)
    assert set(sizes) <= {1, 2, 4, 8, 16, 32, 64, 128}


def test_load_and_order(batch_jobs: list[Job]) -> None:
    asked = sum(job.work_s * job.devices for job in batch_jobs)
    assert asked / (2_500 * PHILLY.span_s) == pytest.approx(0.9, rel=0.05)
    assert len(batch_jobs) == PHILLY.count == 82_247
    assert [job.id for job in batch_jobs] == list(range(82_247))
    assert batch_jobs[0].submit_s == 0
    assert all(a.submit_s <= b.submit_s for a, b in pairwise(batch_jobs))


def test_elastic_jobs_and_tiers(batch_jobs: list[Job]) -> None:
    large = [job for job in batch_jobs if job.devices > 1]
    elastic = [job for job in large if job.counts]
    assert len(elastic) / len(large) == pytest.approx(0.3, abs=0.03)
    assert all(not job.counts for job in batch_jobs if job.devices == 1)
    for job in elastic:
        assert job.counts == tuple(sorted(job.counts))
        assert (job.min_devices, job.devices) == (job.counts[0], job.counts[-1])
        assert all(count & (count - 1) == 0 for count in job.counts)
        assert job.scale_interval_s == 600
    tiers = Counter(job.tier for job in batch_jobs)
    assert tiers["premium"] / len(batch_jobs) == pytest.approx(0.2, abs=0.02)
    assert tiers["basic"] / len(batch_jobs) == pytest.approx(0.4, abs=0.02)


def test_acme_is_shorter_and_larger() -> None:
    jobs = list(generate(Workload(devices=2_288, jobs=20_000, notebook_share=0.0, style="acme")))
    assert quantile([job.work_s for job in jobs], 0.5) == pytest.approx(122, rel=0.1)
    sizes = [job.devices for job in jobs]
    assert statistics.median(sizes) == 1
    assert max(sizes) == 1024


def test_a_mix_with_everything() -> None:
    regions = ("west", "east", "north", "south")
    workload = Workload(
        devices=5_000,
        load=0.7,
        jobs=30_000,
        notebook_share=0.02,
        fraction_share=0.4,
        regions=regions,
        virtual_clusters=6,
        seed=4,
    )
    jobs = list(generate(workload))
    sessions = [job for job in jobs if job.cells]
    assert len(sessions) / len(jobs) == pytest.approx(0.02, abs=0.004)
    asked = sum(job.work_s * job.devices * job.share_milli / 1000 for job in jobs)
    assert asked / (5_000 * workload.span_s) == pytest.approx(0.7, rel=0.12)
    one = [job for job in jobs if job.devices == 1 and not job.cells]
    parts = [job.share_milli for job in one if job.share_milli < 1000]
    assert len(parts) / len(one) == pytest.approx(0.4, abs=0.03)
    assert parts.count(810) / len(parts) == pytest.approx(1078 / 3007, abs=0.03)
    anywhere = sum(not job.locations for job in jobs)
    assert anywhere / len(jobs) == pytest.approx(0.8, abs=0.03)
    named = {job.locations for job in jobs if job.locations}
    assert all(1 <= len(set(n)) == len(n) <= 3 and set(n) <= set(regions) for n in named)
    assert len({job.virtual_cluster for job in jobs}) == 6
    owners = {(job.user, job.virtual_cluster) for job in jobs}
    assert len(owners) == len({user for user, _ in owners})


def test_the_same_seed_gives_the_same_jobs() -> None:
    workload = Workload(devices=64, days=3, seed=9, regions=("a", "b"))
    trace = synthetic(workload)
    jobs = list(trace)
    assert list(trace) == jobs
    assert trace.count == len(jobs)
    assert trace.devices == 64
    assert list(generate(replace(workload, seed=10))) != jobs
    assert max(job.devices for job in jobs) <= 64
    assert jobs[-1].submit_s < 3 * DAY


@pytest.mark.parametrize("count", [1, 3, 300])
def test_small_workloads(count: int) -> None:
    jobs = list(generate(Workload(devices=1, jobs=count, notebook_share=0.5)))
    assert len(jobs) == count
    assert {job.devices for job in jobs} == {1}


def test_the_last_job_costs_no_more_than_the_first_and_none_is_held() -> None:
    """How fast it is in seconds is what `./dev bench` says."""
    workload = Workload(devices=100_000, jobs=3_300_000, regions=("a", "b", "c"))
    stream = generate(workload)
    next(stream)
    took = []
    for count in (20_000, 80_000):
        start = time.thread_time()
        for _ in range(count):
            last = next(stream)
        took.append((time.thread_time() - start) / count)
    assert took[1] < 3 * took[0]
    assert last.id == 100_000


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"devices": 0}, "devices of a workload is 0: it must be 1 or more"),
        ({"load": 0.0}, "load of a workload is 0.0: it must be above 0 and at most 100"),
        ({"load": float("nan")}, "load of a workload is nan"),
        ({"jobs": None}, "give either days or jobs of a workload"),
        ({"days": 3.0}, "give either days or jobs of a workload"),
        ({"jobs": 0}, "jobs of a workload is 0"),
        ({"days": -1.0, "jobs": None}, "days of a workload is -1.0: it must be from 0.01 to 3650"),
        ({"style": "pai"}, "style of a workload is 'pai': it must be philly or acme"),
        ({"notebook_share": 1.5}, "notebook_share of a workload is 1.5: it must be from 0 to 1"),
        ({"elastic_share": -0.1}, "elastic_share of a workload is -0.1: it must be from 0 to 1"),
        ({"scale_interval_s": -1.0}, "scale_interval_s of a workload is -1.0"),
        ({"users": 0}, "a workload has at least 1 virtual cluster and 1 user"),
        ({"tier_shares": (1.0, 1.0, 1.0)}, "the shares of the tiers are (1.0, 1.0, 1.0)"),
        ({"premium_cap": 2.0}, "premium_cap is 2.0: it must be from 0 to 1"),
    ],
)
def test_bad_parameters(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadRequest) as caught:
        replace(Workload(devices=8, jobs=10), **change)  # type: ignore[arg-type]
    assert caught.value.message.startswith(sentence)
