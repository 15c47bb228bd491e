"""The figures of a replay, computed by hand; and their files."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.errors import Unsupported
from singularity_scheduler.core.allocation.sla import Account
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.sim import compare, plots, summary
from singularity_scheduler.sim.baselines.fifo import Fifo, Reserve
from singularity_scheduler.sim.traces.records import Trace
from support.replays import batch, notebook, replay


def test_percentiles_lie_between_the_two_nearest() -> None:
    assert summary.percentile([1, 2, 3, 4], 0.5) == 2.5
    assert summary.percentile([7], 0.99) == 7
    assert summary.percentile([], 0.5) is None


def test_the_figures_of_a_queue() -> None:
    one = Fifo()
    jobs = [batch(0, 0, 10, tier="premium"), batch(1, 2, 10, tier="basic"), batch(2, 2, 20)]
    found = summary.summarise(replay(one, jobs, (1,), sample_s=10.0), [one.state.account])
    assert (found["jobs"], found["finished"], found["refused"]) == (3, 3, 0)
    assert found["makespan_s"] == 40
    assert found["jct_s_mean"] == pytest.approx((10 + 18 + 38) / 3)
    assert found["jct_s_p50"] == 18
    assert found["jct_s_p99"] == pytest.approx(38 - 0.02 * 20)
    assert (found["jct_premium_s_mean"], found["jct_basic_s_mean"]) == (10, 18)
    assert found["jct_standard_s_mean"] == 38
    assert found["queue_wait_s_mean"] == pytest.approx((0 + 8 + 18) / 3)
    assert (found["utilisation"], found["busy_share_of_held"]) == (1, 1)
    assert found["preemptions"] == 0
    assert found["rule.place.free"] == 3
    # Wanted for 40 s less its submission, got 20 of these: not what standard promises.
    assert (found["sla_standard_windows"], found["sla_standard_kept_share"]) == (1, 0)
    assert found["sla_premium_kept_share"] == 1


def test_reserved_notebooks_are_held_and_not_busy() -> None:
    one = Reserve()
    jobs = [notebook(0, 0, ((0, 2), (10, 3)), 5), batch(1, 0, 10)]
    found = summary.summarise(replay(one, jobs, (1,)), [one.state.account])
    assert found["held_share"] == 1
    assert found["busy_share_of_held"] == pytest.approx(15 / 30)
    assert (found["cells"], found["cells_at_once"]) == (2, 1)
    assert found["first_cell_wait_s_p95"] == 0
    assert found["resume_wait_s_p95"] is None
    assert (found["jct_s_mean"], found["jct_all_s_mean"]) == (30, 25)


def test_fragmentation_is_what_jobs_cannot_use_of_the_free_devices() -> None:
    # 3 of 4 devices are free on each node; the jobs ask for 1 and for 4: half of them cannot use
    # the 3 of the first node.
    jobs = [batch(0, 0, 100), batch(1, 0, 100, 4)]
    record = replay(Fifo(), jobs, (4, 4), sample_s=50.0)
    assert list(record.series_s) == [0, 50, 100]
    assert list(record.series_held) == [0, 5, 5]
    assert list(record.series_busy) == [0, 5, 5]
    assert list(record.series_unusable) == [0, 1.5, 1.5]  # before anybody came: nothing is asked
    found = summary.summarise(record, [])
    assert found["fragmentation_share"] == 0.5
    assert list(record.series_capacity) == [0, 8, 8]
    assert found["sla_premium_kept_share"] is None


def test_speed_and_the_flat_object() -> None:
    speed = summary.speed(2.0, [0.001] * 99 + [0.101])
    assert (speed["events"], speed["events_s"]) == (100, 50)
    assert speed["decision_ms_p50"] == pytest.approx(1)
    assert speed["decision_ms_max"] == pytest.approx(101)
    assert summary.speed(0.0, [])["events_s"] is None
    flat = summary.flat({"nodes": 2}, {"fifo": {"jobs": 1}, "sjf": {"jobs": 2}})
    assert flat == {"nodes": 2, "fifo.jobs": 1, "sjf.jobs": 2}


def small() -> compare.Setup:
    jobs = [batch(n, 10 * n, 40, 1 + n % 3, "premium" if n % 2 else "basic") for n in range(20)]
    jobs.append(batch(20, 300, 5, 9))
    return compare.Setup(Trace("small", jobs), compare.Cluster(1, 8), compare.fixed(2.0))


def test_policies_get_the_same_jobs_and_too_large_ones_are_refused() -> None:
    for policy in ("singularity", "maxmin"):
        found = compare.replay(policy, small()).summary
        assert (found["jobs"], found["finished"], found["refused"]) == (20, 20, 1)


def test_the_load_sizes_the_cluster() -> None:
    trace = Trace("even", [batch(n, 10 * n, 20, 4) for n in range(11)])
    assert compare.devices_for(trace, 1.0) == round(11 * 80 / 100)
    assert compare.devices_for(trace, 0.5) == round(11 * 80 / 100 / 0.5)
    assert compare.cluster_for(9).nodes == 2
    nodes = list(compare.Cluster(17).up())
    assert (nodes[0].islands, nodes[16].rack) == ((15, 240), "rack-1")


def test_parquet_has_a_row_for_each_job_and_policy(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    results = [compare.replay(policy, small()) for policy in ("fifo", "srtf")]
    jobs, series = summary.write_parquet(
        tmp_path / "out.parquet", {r.policy: r.record for r in results}
    )
    assert series.name == "out.series.parquet"
    rows = parquet.read_table(jobs).to_pydict()
    assert rows["policy"] == ["fifo"] * 20 + ["srtf"] * 20
    waits = [e - s for e, s in zip(rows["end_s"], rows["submit_s"], strict=True)][:20]
    assert math.isclose(sum(waits) / 20, results[0].summary["jct_s_mean"])  # type: ignore[arg-type]
    assert set(parquet.read_table(series).column_names) == {"policy", *summary.SERIES}


@pytest.fixture
def fonts_closed() -> Iterator[None]:
    """Matplotlib keeps the fonts that it used open."""
    manager = pytest.importorskip("matplotlib.font_manager")
    yield
    manager._get_font.cache_clear()
    gc.collect()


@pytest.mark.usefixtures("fonts_closed")
def test_plots_are_there_as_png_and_svg(tmp_path: Path) -> None:
    results = [compare.replay(policy, small()) for policy in ("singularity", "fifo")]
    written = plots.draw(tmp_path / "new", results, Parameters())
    assert sorted(path.name for path in written) == [
        *("jct_cdf.png", "jct_cdf.svg", "sla.png", "sla.svg"),
        *("utilisation.png", "utilisation.svg"),
    ]
    for path in written:
        start = path.read_bytes()[:5]
        assert start == (b"\x89PNG\r" if path.suffix == ".png" else b"<?xml")


@pytest.mark.parametrize("module", ["pyarrow", "matplotlib"])
def test_a_missing_library_is_one_sentence(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    writes = {
        "pyarrow": lambda: summary.write_parquet(tmp_path / "x.parquet", {}),
        "matplotlib": lambda: plots.draw(tmp_path, [], Parameters()),
    }
    with pytest.raises(Unsupported, match=rf"needs {module}, which is not installed: .*simulate"):
        writes[module]()


def test_accounts_of_several_clusters_add_up() -> None:
    one, two = Account(3600.0, (0.0, 0.7, 0.95)), Account(3600.0, (0.0, 0.7, 0.95))
    one.windows, one.kept = [0, 0, 3], [0, 0, 3]
    two.windows, two.kept = [0, 0, 1], [0, 0, 0]
    found = summary.summarise(replay(Fifo(), [batch(0, 0, 1)]), [one, two])
    assert (found["sla_premium_windows"], found["sla_premium_kept_share"]) == (4, 0.75)
