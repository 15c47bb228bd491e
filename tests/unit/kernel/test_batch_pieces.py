"""Pieces of the runner: outputs, files, the wish to end, what it says of its session."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from singularity_kernel.batch.__main__ import take_description
from singularity_kernel.batch.engine import name_cells
from singularity_kernel.batch.files import (
    check_writable,
    read_notebook,
    refuse_itself,
    write_whole,
)
from singularity_kernel.batch.loop import within_awake
from singularity_kernel.batch.running.client import signal_of
from singularity_kernel.batch.running.facts import Facts, of_cell, preemptions, session_facts
from singularity_kernel.batch.running.fates import (
    BadRun,
    Cancelled,
    Interrupted,
    NoNotebook,
    NotWritten,
)
from singularity_kernel.batch.running.outputs import add_stream, settle
from singularity_kernel.batch.running.stop import Stop
from support.batch_runs import write_notebook


def stream(name: str, text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def test_outputs_do_not_depend_on_how_text_was_cut() -> None:
    """However two streams are cut and interleaved between figures, the outputs are the same."""
    chooser = random.Random(1)
    expected = None
    for _ in range(50):
        outputs: list[Any] = []
        for part in ("first", "second"):
            left = {"stdout": f"{part} out\nand more\n", "stderr": f"{part} err\n"}
            while any(left.values()):
                name = chooser.choice([name for name, text in left.items() if text])
                count = chooser.randint(1, len(left[name]))
                add_stream(outputs, stream(name, left[name][:count]))
                left[name] = left[name][count:]
            outputs.append({"output_type": "display_data", "data": {}})
        expected = expected or outputs
        assert outputs == expected
    assert expected is not None
    assert [o.get("name") for o in expected] == ["stdout", "stderr", None] * 2
    assert expected[0]["text"] == "first out\nand more\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("10%\r50%\r100%\n", "100%\n"),
        ("10%\r50%\r", "50%\r"),
        ("a\r\nb\r\n", "a\r\nb\r\n"),
        ("one\ntwo\rthree\n", "one\nthree\n"),
        ("plain\n", "plain\n"),
    ],
)
def test_overwritten_lines(text: str, left: str) -> None:
    outputs = [stream("stderr", text)]
    settle(outputs)
    assert outputs[0]["text"] == left


def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path, link = tmp_path / "out.ipynb", tmp_path / "link.ipynb"
    write_whole(str(path), "old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(str(link), "new")
    assert (path.read_text(), link.is_symlink()) == ("new", True)
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(UnicodeEncodeError):
        write_whole(str(path), "\udc80")
    assert path.read_text() == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.ipynb", "out.ipynb"]


def test_what_is_no_notebook(tmp_path: Path) -> None:
    good = write_notebook(tmp_path / "n.ipynb", "1")
    assert read_notebook(str(good))["cells"][0]["source"] == "1"
    bad = tmp_path / "bad.ipynb"
    half = good.read_text()[:50]
    for content in (b"", b"\xff\xfe", half.encode(), b"[]", b'{"cells": []}', b'{"nbformat": 4}'):
        bad.write_bytes(content)
        with pytest.raises(NoNotebook) as refused:
            read_notebook(str(bad))
        assert refused.value.exit_code == 66
        assert "is not a notebook" in refused.value.message
    job = tmp_path / "job.yml"
    job.write_text("command: python train.py")
    with pytest.raises(NoNotebook, match="job files are submitted in a terminal"):
        read_notebook(str(job))


def test_where_an_output_cannot_go(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "out.ipynb"))
    for path in (tmp_path, tmp_path / "none" / "out.ipynb"):
        with pytest.raises(NotWritten) as refused:
            check_writable(str(path))
        assert refused.value.exit_code == 73


def test_the_description_is_taken_out_of_the_environment() -> None:
    described = {"notebook": "/n.ipynb", "output": "/o.ipynb", "parameters": {"a": 1}, "name": "n"}
    environ = {"RUN_DESCRIPTION": json.dumps(described), "PATH": "/bin"}
    assert take_description(environ) == {
        "notebook": "/n.ipynb",
        "output": "/o.ipynb",
        "parameters": {"a": 1},
        "kernel": None,
        "timeout_s": None,
        "left_s": None,
        "attempt": 1,
        "attempts": 1,
    }
    assert environ == {"PATH": "/bin"}
    for text in ("", "{", "[]", '{"notebook": "/n.ipynb"}'):
        with pytest.raises(BadRun):
            take_description({"RUN_DESCRIPTION": text})


@pytest.mark.parametrize(
    ("signum", "kind", "code"),
    [(signal.SIGTERM, Cancelled, 143), (signal.SIGINT, Interrupted, 130)],
)
def test_a_signal_is_remembered_and_wakes(signum: int, kind: type[Cancelled], code: int) -> None:
    before = signal.getsignal(signum)
    woken = []
    with Stop().listening() as stop, stop.waking(lambda: woken.append(1)):
        assert stop.signum is None
        os.kill(os.getpid(), signum)
        os.kill(os.getpid(), signum)
        assert woken == [1]
        with stop.waking(lambda: woken.append(2)):  # whoever waits later hears of it too
            assert woken == [1, 2]
    assert signal.getsignal(signum) is before
    fate = stop.fate("all is saved")
    assert type(fate) is kind
    assert (fate.exit_code, fate.message) == (code, "the run was cancelled; all is saved")


def test_a_time_limit_asks_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[float] = []
    monkeypatch.setattr(signal, "setitimer", lambda _, seconds: set_to.append(seconds))
    before = signal.getsignal(signal.SIGALRM)
    stop = Stop()
    with stop.limited(None):
        assert set_to == []
    with stop.limited(60):
        assert set_to == [60]
        os.kill(os.getpid(), signal.SIGALRM)
    assert set_to == [60, 0]
    assert signal.getsignal(signal.SIGALRM) is before
    fate = stop.fate("all is saved")
    assert (fate.exit_code, fate.message) == (
        124,
        "the run's time limit of 60 s is over; all is saved",
    )


def test_preemptions_are_counted() -> None:
    rules = ["start", "preempt.tier", "device.parked", "user.park", "user.preempt", "preempt.idle"]
    assert preemptions([{"rule": rule} for rule in rules] + [{}]) == 3


def test_without_an_agent_the_facts_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINGULARITY_SESSION", "abc")
    about = ("tier", "devices", "preemptions", "attempt")
    unknown = {"session": "abc", **dict.fromkeys(about)}
    assert session_facts().of_notebook() == unknown
    monkeypatch.setenv("SINGULARITY_SOCKET", "/nowhere/agent.sock")
    assert session_facts().of_notebook() == unknown


def test_what_a_cell_met() -> None:
    def change(second: float, state: str, rule: str = "") -> dict[str, Any]:
        return {"at": f"2026-01-01T00:00:{second:06.3f}+00:00", "device_state": state, "rule": rule}

    def during(start: float, end: float) -> tuple[int, float, float]:
        times = (f"2026-01-01T00:00:{at:09.6f}+00:00" for at in (start, end))
        found = of_cell(Facts("abc", "basic", 2, 1, history=history), *times)
        return found["preemptions"], found["waited_s"], found["device_s"]

    history = [
        change(1, "none"),
        change(10, "waiting"),
        change(11, "attaching"),
        change(12, "held"),
        change(20, "parking", "user.preempt"),
        change(20.5, "parked"),
        change(21, "waiting"),
        change(25, "held"),
    ]
    assert during(0, 9) == (0, 0.0, 0.0)
    assert during(9, 15) == (0, 2.0, 6.0)
    assert during(15, 26) == (1, 4.0, 12.0)
    assert during(26, 30) == (0, 0.0, 8.0)  # it goes on as it was last told
    assert during(22, 22) == (0, 0.0, 0.0)
    assert of_cell(Facts("abc"), "2026-01-01T00:00:00", "2026-01-01T00:00:05")["device_s"] == 0.0


def test_random_ids_of_cells_become_steady(tmp_path: Path) -> None:
    import nbformat

    notebook = nbformat.read(write_notebook(tmp_path / "n.ipynb", "1", "2"), as_version=4)
    injected = nbformat.v4.new_code_cell("x = 1", metadata={"tags": ["injected-parameters"]})
    notebook.cells.insert(1, injected)
    name_cells(notebook, False)
    assert [c["id"] for c in notebook.cells] == ["cell-0", "injected-parameters", "cell-1"]
    for cell in notebook.cells:
        cell["id"] = os.urandom(4).hex()
    name_cells(notebook, True)
    assert [c["id"] for c in notebook.cells] == ["cell-1", "injected-parameters", "cell-3"]


def test_outputs_before_a_long_silence_are_saved(tmp_path: Path) -> None:
    import nbformat
    from singularity_kernel.batch.running.record import RunRecord

    out = tmp_path / "out.ipynb"
    notebook = nbformat.read(write_notebook(tmp_path / "n.ipynb", "1"), as_version=4)
    notebook.metadata["papermill"] = {}
    record = RunRecord(
        notebook, facts=Facts, output_path=str(out), progress_bar=False, autosave_cell_every=1
    )
    record.notebook_start()
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", text="news")]
    record.save_news()
    assert "news" not in out.read_text()  # nobody said that there is any
    record.autosave_cell()
    assert "news" not in out.read_text()  # saved a moment ago
    record.last_save_time -= timedelta(seconds=2)
    record.save_news()
    assert "news" in out.read_text()
    record.notebook_complete()


def test_a_notebook_is_never_its_own_output(tmp_path: Path) -> None:
    notebook, link = tmp_path / "a.ipynb", tmp_path / "b.ipynb"
    notebook.write_text("{}")
    link.symlink_to(notebook)
    for output in (str(notebook), f"{tmp_path}/./a.ipynb", str(link)):
        with pytest.raises(BadRun, match="would replace the notebook itself"):
            refuse_itself(str(notebook), output)
    refuse_itself(str(notebook), str(tmp_path / "c.ipynb"))


@pytest.mark.asyncio
async def test_hours_in_the_store_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the loop jumps, as after a restore, and what is waited for comes right then."""
    loop = asyncio.get_running_loop()
    clock, away = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: clock() + away)
    came = asyncio.Event()

    async def back() -> None:
        nonlocal away
        away = 3600.0
        await asyncio.sleep(0.05)
        came.set()

    waiting = asyncio.ensure_future(within_awake(3.0, came.wait()))
    await asyncio.gather(back(), waiting)
    with pytest.raises(TimeoutError):
        await within_awake(0.05, asyncio.Event().wait())


@pytest.mark.parametrize(
    ("code", "signum"),
    [(None, 0), (0, 0), (1, 0), (128, 0), (137, 9), (-9, 9), (192, 64), (193, 0), (255, 0)],
)
def test_an_exit_code_says_which_signal_ended_a_process(code: int | None, signum: int) -> None:
    assert signal_of(code) == signum
