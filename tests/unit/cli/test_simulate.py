"""`jupyter singularity simulate`, from the command line to the files."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from singularity_scheduler.cli.local import simulate
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.sim import plots

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A small one in the format of Philly."""
    rng, path = random.Random(1), tmp_path / "jobs.csv"
    lines = ["timestamp,duration,num_gpus,gpu_time,cluster"]
    for number in range(60):
        hour, minute = divmod(number, 60 // 4)
        seconds, devices = rng.randrange(60, 6000), rng.choice((1, 1, 2, 8))
        moment = f"2017-10-09 {hour:02}:{minute:02}:00"
        lines.append(f"{moment},{seconds}.0,{devices},{seconds * devices},vc{number % 3}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_several_clusters(trace: str, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out.json"
    words = [trace, "--devices=32", "--clusters=4", "--regions=2", "--policy=singularity,fifo"]
    assert simulate.main([*words, "--json", str(out)]) == 0
    told = capsys.readouterr()
    assert "on 32 devices (4 nodes of 8 in 4 clusters)" in told.err
    figures = json.loads(out.read_text())
    assert (figures["clusters"], figures["regions"]) == (4, 2)
    assert figures["singularity.finished"] == figures["fifo.finished"] == 60
    assert (figures["fifo.relocations"], figures["singularity.relocations"] > 0) == (0, True)


def test_policies_are_compared(trace: str, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out.json"
    words = [trace, "--devices=16", "--policy", "singularity,fifo,srtf-oracle", "--restart-s=30"]
    assert simulate.main([*words, "--json", str(out), "--set", "idle_soft_s=600"]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == [
        "POLICY",
        "singularity",
        "fifo",
        "srtf-oracle",
    ]
    assert "The mean JCT of singularity is " in told.out
    assert told.err.startswith("jobs.csv: 60 jobs on 16 devices (2 nodes of 8); a preemption takes")
    figures = json.loads(out.read_text())
    assert (figures["devices"], figures["parameter.idle_soft_s"]) == (16, 600)
    assert (figures["leave_s"], figures["back_s"]) == (0, 30)
    assert all(figures[f"{name}.finished"] == 60 for name in ("singularity", "fifo", "srtf-oracle"))
    assert figures["fifo.jct_s_mean"] >= figures["srtf-oracle.jct_s_mean"]
    assert all(not isinstance(value, dict | list) for value in figures.values())
    again = tmp_path / "again.json"
    assert simulate.main([*words, "--json", str(again), "--set", "idle_soft_s=600"]) == 0
    other = json.loads(again.read_text())
    clocks = ("wall_s", "events_s", "decision_ms_p50", "decision_ms_p99", "decision_ms_max")
    for key, value in figures.items():
        assert other[key] == value or key.endswith(clocks), key


def test_a_synthetic_workload_with_its_files(tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("pyarrow")
    words = ["--synthetic", "--nodes=2", "--workload", "jobs=120", "--seed=3", "--progress"]
    words += ["--workload", "notebook_share=0.1", "--policy=singularity,reserve"]
    assert simulate.main([*words, "--parquet", str(tmp_path / "j.parquet")]) == 0
    told = capsys.readouterr()
    assert "synthetic: 120 jobs on 16 devices (2 nodes of 8); a preemption takes 3.25 s" in told.err
    assert "singularity (jobs)" in told.err
    assert (tmp_path / "j.series.parquet").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give a trace or --synthetic"),
        (["TRACE", "--synthetic"], "give a trace or --synthetic"),
        (["TRACE"], "give the size of the cluster: --devices, --nodes or --load"),
        (["TRACE", "--nodes=1", "--devices=8"], "give --devices or --nodes, not both"),
        (["TRACE", "--devices=-1"], "--devices must be 0 or more"),
        (["TRACE", "--nodes=1", "--devices-per-node=0"], "--devices-per-node must be from 1 to 64"),
        (["TRACE", "--load=-1"], "--load must be above 0 and at most 100"),
        (["TRACE", "--nodes=1", "--clusters=2"], "8 devices in 2 clusters do not fill one node"),
        (["TRACE", "--nodes=2", "--clusters=0"], "clusters must be at least 1, not 0"),
        (
            ["TRACE", "--nodes=2", "--regions=3", "--clusters=2"],
            "2 clusters cannot be in 3 regions",
        ),
        (["TRACE", "--nodes=1", "--restart-s=-1"], "--restart-s must be 0 seconds or more"),
        (["TRACE", "--nodes=1", "--policy=fif"], "there is no policy 'fif': did you mean 'fifo'?"),
        (["TRACE", "--nodes=1", "--policy=,"], "--policy names no policy"),
        (["TRACE", "--nodes=1", "--set", "x"], "--set needs NAME=VALUE, not 'x'"),
        (
            ["TRACE", "--nodes=1", "--set", "idle_soft=1"],
            "--set knows no 'idle_soft': did you",
        ),
        (["TRACE", "--nodes=1", "--tiers=1/2"], "--tiers must be three percentages like 20/40/40"),
        (["TRACE", "--nodes=1", "--read", "tick=1"], "--read knows no 'tick': did you mean"),
        (["TRACE", "--nodes=1", "--format=csv"], "unknown format 'csv': known are philly"),
        (["--synthetic", "--workload", "style=x"], "style of a workload is 'x'"),
        (["--synthetic", "--workload", "dayz=1"], "--workload knows no 'dayz': did you mean"),
        (["--synthetic", "--days=-1"], "days of a workload is -1.0: it must be"),
    ],
)
def test_wrong_lines(trace: str, capsys: Captured, words: list[str], sentence: str) -> None:
    assert simulate.main([trace if word == "TRACE" else word for word in words]) == 64
    out, err = capsys.readouterr()
    assert err.startswith(f"jupyter singularity simulate: {sentence}")
    assert (out, err.count("\n")) == ("", 1)


def test_a_bad_trace_is_one_sentence(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("timestamp,duration,num_gpus,cluster\n2017-10-09 07:01:55,-5,1,a\n")
    assert simulate.main([str(path), "--nodes=1"]) == 64
    err = capsys.readouterr().err
    assert "bad.csv row 2" in err
    assert err.count("\n") == 1


def test_a_result_that_cannot_be_written(trace: str, capsys: Captured) -> None:
    words = [trace, "--nodes=2", "--policy=fifo", "--json", "/proc/none/x.json"]
    assert simulate.main(words) == 73
    assert "/proc/none/x.json cannot be written (" in capsys.readouterr().err


def test_a_missing_library_is_said_before_the_work(
    trace: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert simulate.main([trace, "--nodes=2", "--plot", "plots"]) == 70
    assert "--plot needs matplotlib, which is not installed" in capsys.readouterr().err


def test_plots_go_to_a_folder(
    trace: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[Path, int, float]] = []

    def draw(folder: Path, results: list[Any], parameters: Parameters) -> list[Path]:
        drawn.append((folder, len(results), parameters.premium_fraction))
        return [folder / "sla.png"]

    monkeypatch.setattr(plots, "draw", draw)
    words = [trace, "--nodes=2", "--policy=fifo,sjf", "--set", "premium_fraction=0.9"]
    assert simulate.main([*words, "--plot", str(tmp_path)]) == 0
    assert drawn == [(tmp_path, 2, 0.9)]
    assert f"written: {tmp_path}/sla.png" in capsys.readouterr().err


def test_load_sizes_the_cluster(trace: str, capsys: Captured) -> None:
    assert simulate.main([trace, "--load=0.5", "--policy=fifo", "--jobs=40"]) == 0
    told = capsys.readouterr()
    assert "40 jobs on " in told.err
    assert "fifo" in told.out
