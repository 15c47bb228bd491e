"""Trace readers: what each makes of its format, and one sentence with file and row on bad input."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from singularity_proxy.errors import BadRequest
from singularity_scheduler.sim.traces.formats import FORMATS, find_format, open_trace
from singularity_scheduler.sim.traces.logs import clusters, openb, peers, philly
from singularity_scheduler.sim.traces.records import BadTrace, Job, Trace
from singularity_scheduler.sim.traces.table import MAX_LINE, ReadOptions
from support import trace_files
from support.trace_files import Made

ROOT = Path(__file__).resolve().parents[3]


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def read(folder: Path, text: str, format: str | None = None) -> Trace:
    return open_trace(written(folder, text), format, trace_files.options(folder))


def test_every_format_has_a_sample() -> None:
    assert set(trace_files.FORMATS) == set(FORMATS)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("format", trace_files.FORMATS)
def test_reads_each_format(tmp_path: Path, format: str, packed: bool) -> None:
    made: Made = trace_files.made(format, jobs=40)
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(made.text.encode()) if packed else made.text.encode())
    assert find_format(path) == format
    trace = open_trace(path, options=trace_files.options(tmp_path))
    jobs = list(trace)
    assert (trace.name, trace.facts["format"], trace.skipped) == ("trace", format, {})
    assert trace.count == len(jobs) == made.jobs
    assert [job.id for job in jobs] == list(range(made.jobs))
    assert jobs[0].submit_s == 0
    assert jobs == sorted(jobs, key=lambda job: job.submit_s)
    assert trace.span_s == jobs[-1].submit_s > 0
    assert sum(job.devices for job in jobs) == made.devices
    assert sum(job.devices * job.work_s for job in jobs) == pytest.approx(made.device_seconds)
    assert len({job.name for job in jobs}) == made.jobs
    assert list(trace) == jobs


def test_philly(tmp_path: Path) -> None:
    text = (
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 06:13:03,0.0,8,0.0,6214e9\n\n"
    )
    assert list(read(tmp_path, text)) == [
        Job(0, "6214e9-3", 0.0, 0.0, 8, virtual_cluster="6214e9"),
        Job(1, "11cb48-2", 2932.0, 66.0, 1, virtual_cluster="11cb48"),
    ]


def test_philly_log_skips_what_did_not_run(tmp_path: Path) -> None:
    entries = json.loads(trace_files.made("philly-log", jobs=3).text)
    entries[0]["attempts"] = []
    entries[1]["attempts"][-1]["end_time"] = None
    trace = read(tmp_path, json.dumps(entries))
    assert [job.name for job in trace] == ["application_2"]
    assert trace.skipped == {
        "never ran on a GPU": 1,
        "was still running when the log was taken": 1,
    }


def test_philly_log_in_pieces(tmp_path: Path) -> None:
    made = trace_files.made("philly-log", jobs=700)
    assert len(made.text) > 4 << 16
    trace = read(tmp_path, json.dumps(json.loads(made.text)), "philly-log")
    assert trace.count == 700
    assert sum(job.devices * job.work_s for job in trace) == pytest.approx(made.device_seconds)


@pytest.mark.parametrize(
    "row",
    [
        "A3C\tpython3 x.py\t--steps\t1\t500\t12.5\t4\n",
        "A3C\tpython3 x.py\t--steps\t500\t12\t4\n",
        "A3C\tpython3 x.py\t/work\t--steps\t1\t500\t4\t2\t-1.0\t12\n",
    ],
    ids=["7 columns", "6 columns", "10 columns"],
)
def test_gavel_orders(tmp_path: Path, row: str) -> None:
    job = next(iter(read(tmp_path, row)))
    assert (job.devices, job.work_s) == (4, 50.0)
    assert job.priority == ("high" if "/work" in row else "medium")


def test_gavel_needs_throughputs(tmp_path: Path) -> None:
    path = written(tmp_path, trace_files.made("gavel").text, "a.trace")
    options = trace_files.options(tmp_path)
    with pytest.raises(BadTrace, match=r"a\.trace gives its work in steps: name Gavel's simul"):
        open_trace(path)
    with pytest.raises(BadTrace, match=r"json has no throughputs of 'k80' \(it has v100\)"):
        open_trace(path, options=replace(options, worker_type="k80"))
    bad = written(tmp_path, '{"v100": {', "cut.json")
    with pytest.raises(BadTrace, match=r"cut\.json is not JSON"):
        open_trace(path, options=replace(options, throughputs=bad))
    with pytest.raises(BadTrace, match=r"row 1: the throughputs have no speed of 'GAN' on 1 x v1"):
        read(tmp_path, "GAN\tx\t--steps\t500\t12\t1\n")


def test_tiresias_in_minutes(tmp_path: Path) -> None:
    path = written(tmp_path, "job_id,num_gpu,submit_time,duration\n7,4,10,3\n8,1,12,1\n")
    trace = open_trace(path, options=ReadOptions(tick_s=60))
    assert list(trace) == [Job(0, "7", 0.0, 180.0, 4), Job(1, "8", 120.0, 60.0, 1)]
    with pytest.raises(BadRequest, match="tick_s is 0"):
        ReadOptions(tick_s=0)


def test_pollux_durations(tmp_path: Path) -> None:
    path = written(
        tmp_path, "name,time,application,num_replicas,batch_size\na,1,bert,1,12\nb,2,bert,4,48\n"
    )
    table = {"bert": 900.0, "bert/4": 300.0}
    trace = open_trace(path, options=ReadOptions(durations=table, elastic=True))
    assert [(job.work_s, job.min_devices) for job in trace] == [(900.0, 0), (300.0, 1)]
    with pytest.raises(BadTrace) as caught:
        open_trace(path, options=ReadOptions(durations={"bert/4": 300.0}))
    assert caught.value.message == (
        "trace.csv row 2: this format does not say how long 'bert' runs: give its seconds in a "
        'table of durations, as "bert" or "bert/1"'
    )
    with pytest.raises(BadTrace, match=r"given duration of 'bert' is nan: it must be 0 or more"):
        open_trace(path, options=ReadOptions(durations={"bert": float("nan")}))


def test_jobs_without_gpu_are_counted(tmp_path: Path) -> None:
    text = trace_files.made("helios", jobs=2).text + (
        "9,u1,vc1,0,4,1,COMPLETED,2020-06-09 18:41:01,,,5,0\n"
    )
    trace = read(tmp_path, text)
    assert (trace.count, trace.skipped) == (2, {"asks for no GPU": 1})


def test_acme_run_time_excludes_the_queue(tmp_path: Path) -> None:
    header = trace_files.HEADERS["acme"][0]
    rows = [
        "a,u1,8,64,960,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,"
        "2023-05-17 11:01:16+00:00,18,10.0,1152.0",
        "b,u1,8,64,960,Other,FAILED,2023-05-17 19:01:00+08:00,,,18,10.0,1152.0",
    ]
    jobs = list(read(tmp_path, "\n".join([header, *rows])))
    assert [(job.submit_s, job.work_s, job.user) for job in jobs] == [
        (0.0, 8.0, "u1"),
        (2.0, 18.0, "u1"),
    ]


def test_pai_adds_up_the_tasks_of_a_job(tmp_path: Path) -> None:
    rows = [
        "j0,ps,1.0,Terminated,100.0,900.0,600.0,29.3,0.0,",
        "j0,worker,3.0,Terminated,110.0,910.0,600.0,29.3,50.0,T4",
        "j0,evaluator,1.0,Terminated,120.0,300.0,600.0,29.3,25.0,T4",
        "j1,tensorflow,1.0,Running,150.0,160.0,600.0,29.3,25.0,MISC",
        "j2,tensorflow,1.0,Running,150.0,,600.0,29.3,25.0,MISC",
    ]
    trace = read(tmp_path, "\n".join(rows))
    assert list(trace) == [
        Job(0, "j0", 0.0, 800.0, 2, device_type="T4"),
        Job(1, "j1", 40.0, 10.0, 1, share_milli=250, device_type="MISC"),
    ]
    assert trace.skipped == {"asks for no GPU": 1, "has no start or no end": 1}


PHILLY = "timestamp,duration,num_gpus,cluster\n2017-10-09 07:01:55,66.0,1,a\n"
TIRESIAS = "job_id,num_gpu,submit_time,duration\n1,1,0,5\n2,1,0,5\n"


@pytest.mark.parametrize(
    ("text", "old", "new", "row", "column", "sentence"),
    [
        (PHILLY, "66.0", "-3", 2, "duration", "duration is -3: it cannot be negative"),
        (PHILLY, "66.0", "inf", 2, "duration", "duration is inf: it is too large"),
        (PHILLY, "66.0", "1e12", 2, "duration", "duration is 1e12: it is too large"),
        (PHILLY, "66.0", "nan", 2, "duration", "duration is 'nan', which is not a number"),
        (PHILLY, "66.0", "6_6", 2, "duration", "duration is '6_6', which is not a number"),
        (PHILLY, "66.0", "", 2, "duration", "duration is missing"),
        (PHILLY, ",1,a", ",0,a", 2, "num_gpus", "num_gpus is 0: it must be at least 1"),
        (PHILLY, ",1,a", ",-2,a", 2, "num_gpus", "num_gpus is -2: it must be at least 1"),
        (PHILLY, ",1,a", ",1.5,a", 2, "num_gpus", "num_gpus is 1.5: it must be a whole number"),
        (PHILLY, ",1,a", ",1e9,a", 2, "num_gpus", "num_gpus is 1e9: it must be at most 1,000,000"),
        (PHILLY, ",1,a", ",1", 2, None, "has 3 fields, but the header has 4"),
        (
            PHILLY,
            "2017-10-09 07:01:55",
            "yesterday",
            2,
            "timestamp",
            "timestamp is 'yesterday': it must be a time like 2017-10-09 07:01:55",
        ),
        (
            PHILLY,
            "duration",
            "durations",
            1,
            "duration",
            "a Philly trace needs a column 'duration' (is 'durations' meant?)",
        ),
        (
            PHILLY,
            "timestamp,duration,num_gpus,cluster\n2017-10-09 07:01:55,66.0,1,a",
            "timestamp,duration,num_gpus,cluster,gpu_tim\n2017-10-09 07:01:55,66.0,1,a,1",
            1,
            "gpu_tim",
            "a Philly trace has no column 'gpu_tim'; the nearest one is 'gpu_time'. "
            "Remove or ignore it",
        ),
        (
            TIRESIAS,
            "duration\n1,1,0,5\n2,1,0,5",
            "duration,duration\n1,1,0,5,5",
            1,
            "duration",
            "the column 'duration' is there twice",
        ),
        (TIRESIAS, "\n2,", "\n1,", 3, "job_id", "job_id '1' is the same as in row 2"),
    ],
)
def test_bad_rows(
    tmp_path: Path,
    text: str,
    old: str,
    new: str,
    row: int,
    column: str | None,
    sentence: str,
) -> None:
    assert text.count(old) >= 1
    with pytest.raises(BadTrace) as caught:
        read(tmp_path, text.replace(old, new, 1))
    colon = "" if sentence.startswith("has") else ":"
    assert caught.value.message == f"trace.csv row {row}{colon} {sentence}"
    assert caught.value.fields == {"file": "trace.csv", "row": row, "column": column}


def test_a_column_may_be_ignored(tmp_path: Path) -> None:
    path = written(tmp_path, "job_id,num_gpu,submit_time,duration,mood,\n1,1,0,5,good,9\n")
    with pytest.raises(BadTrace, match=r"has no column 'mood'"):
        open_trace(path)
    assert open_trace(path, options=ReadOptions(ignore=frozenset({"mood"}))).count == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "trace.csv is empty"),
        (b"\n\n", "trace.csv row 1 is the header of no known trace"),
        (b"a,b\n1,2\n", "trace.csv row 1 is the header of no known trace; known formats are phil"),
        (PHILLY.encode()[:36], "trace.csv has no job that can be replayed"),
        (b"\x89PNG\r\n\x1a\n\xff\xff", "trace.csv is not text: a trace is CSV"),
        (PHILLY.encode() + b"\xff\xfe,\n", "trace.csv"),
        (gzip.compress(PHILLY.encode() * 50, mtime=0)[:-30], "trace.csv after row"),
        (gzip.compress(PHILLY.encode(), mtime=0)[:-4], "trace.csv"),
        (PHILLY.encode() + b"x" * (MAX_LINE + 2), "trace.csv row 3 is longer than 1,048,576 cha"),
        (b"sn,cpu_milli,memory_mib,gpu,model\n", "trace.csv is a list of nodes: give the list"),
        (b"{}", "trace.csv row 1: the log must be a JSON list of jobs"),
        (b"[", "trace.csv row 1: the list of jobs is empty or not closed"),
        (b"[]", "trace.csv has no job that can be replayed"),
        (b"[3]", "trace.csv row 1: a job is not a JSON object"),
        (b'[{"jobid": 1}]', "trace.csv row 1: the job has no 'vc'"),
        (b"[" * 100_000, "trace.csv row 1: a job is not JSON, cut off, or larger than 16 MiB"),
        (b"[{}] []", "trace.csv row 1: the job has no 'jobid'"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(BadTrace) as caught:
        open_trace(path, options=trace_files.options(tmp_path))
    assert caught.value.message.startswith(sentence)
    assert "\n" not in caught.value.message
    assert caught.value.fields["file"] == "trace.csv"


def test_no_such_file_or_format(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"^gone\.csv cannot be read: No such file or directory$"):
        open_trace(tmp_path / "gone.csv")
    with pytest.raises(BadTrace, match=r"cannot be read: Is a directory$"):
        open_trace(tmp_path)
    with pytest.raises(BadTrace, match=r"^unknown format 'slurm': known are philly, philly-log, o"):
        open_trace(tmp_path / "x", "slurm")


def test_the_page_names_every_format_and_column() -> None:
    page = (ROOT / "docs/reference/traces.md").read_text()
    columns = {
        "philly": (philly.COLUMNS, philly.EXTRAS),
        "openb": (openb.POD_COLUMNS, openb.POD_EXTRAS),
        "tiresias": (peers.TIRESIAS, peers.TIRESIAS_EXTRAS),
        "pollux": (peers.POLLUX, ()),
        "helios": (clusters.HELIOS, clusters.HELIOS_EXTRAS),
        "acme": (clusters.ACME, clusters.ACME_EXTRAS),
    }
    for format, pair in columns.items():
        must, may = (", ".join(f"`{name}`" for name in names) for names in pair)
        assert f"| `{format}` | {must} | {may}{' ' if may else ''}|\n" in page
    for format in FORMATS:
        assert page.count(f"\n| `{format}` | ") >= 2
    for option in fields(ReadOptions):
        assert f"\n| `{option.name}` | " in page


SAMPLES = {format: trace_files.made(format, jobs=4).text.encode() for format in FORMATS}
PIECES = st.sampled_from(
    [
        *(b"-1", b"0", b"nan", b"1e999", b"", b",", b"\n", b'"', b"\x00", b"\xff", b"[", b"}"),
        *(b"9" * 5000, b"null", b"\t", b"2017-13-45 99:99:99", b"9999-12-31 23:59:59", b"\xef\xbb"),
    ]
)
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 12), st.one_of(PIECES, st.binary(max_size=4))),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("format", trace_files.FORMATS)
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(edits=EDITS, packed=st.booleans(), cut=st.none() | st.floats(0, 1))
def test_damaged_files_read_or_say_why(
    tmp_path: Path,
    format: str,
    edits: list[tuple[float, int, bytes]],
    packed: bool,
    cut: float | None,
) -> None:
    content = SAMPLES[format]
    for place, length, piece in edits:
        at = int(place * len(content))
        content = content[:at] + piece + content[at + length :]
    if packed:
        content = gzip.compress(content)
    if cut is not None:
        content = content[: int(cut * len(content))]
    path = tmp_path / "trace"
    path.write_bytes(content)
    options = trace_files.options(tmp_path)
    for name in (format, None):
        jobs: list[Job] = []
        sentence = ""
        try:
            jobs = list(open_trace(path, name, options))
        except BadTrace as error:
            sentence = error.message
        assert bool(jobs) != sentence.startswith("trace ")
        assert "\n" not in sentence
        assert len(sentence) < 700
        submits = [job.submit_s for job in jobs]
        assert submits == sorted(submits)
        assert all(job.devices >= 1 and 0 <= job.work_s < 1e12 for job in jobs)
