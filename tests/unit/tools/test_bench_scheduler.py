"""The benchmark of the scheduler on the smallest sizes: what it measures and leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import replays, scheduler
from benchmarks.replays import TRACES, Comparison, Traces


def test_traces_are_found_anywhere_below_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "philly.csv.gz").touch()
    monkeypatch.setenv(TRACES, str(tmp_path))
    found = Traces.found()
    assert found.philly == tmp_path / "deep" / "philly.csv.gz"
    assert found.openb_nodes is None
    monkeypatch.delenv(TRACES)
    assert Traces.found() == Traces()


def test_jobs_have_one_tier_where_policies_without_tiers_are_compared() -> None:
    mix = Comparison(None, 32, 1.0)
    assert {job.tier for job in mix.jobs(tiers=False)} == {""}
    assert len({job.tier for job in mix.jobs(tiers=True)}) > 1
    ours = replays.jct(mix, "singularity", False)
    theirs = replays.jct(mix, "tiresias", False)
    assert ours["jobs"] == theirs["jobs"] == ours["finished"] == theirs["finished"] > 0


def test_figures_of_speed() -> None:
    found = replays.scale(256, 2, 2, 60)
    assert found["finished"] == 60
    assert found["events"] > 60
    assert found["rss_gb"] > 0
    assert replays.routing(256, 4, 2, 50, 100.0)["p99"] > 0
    found = replays.decisions(4, 20, 200)
    assert found["sessions"] >= 20
    assert 0 < found["p50"] <= found["p99"] <= found["max"]


def test_every_bound_is_of_a_figure_that_is_promised_once() -> None:
    assert not scheduler.BOUNDS.keys() & scheduler.FLOORS.keys()
    assert scheduler.sizes(True).keys() == scheduler.sizes(False).keys()
