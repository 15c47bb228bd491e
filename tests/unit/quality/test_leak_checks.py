"""The leak checks find what they are there to find, and accuse nobody else."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support import leaks, matrix

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@contextmanager
def running(argv: list[str], env: dict[str, str]) -> Iterator[int]:
    """A process that is not our descendant: its parent ends at once."""
    starter = (
        "import subprocess as s, sys;"
        "print(s.Popen(sys.argv[1:], stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", starter, *argv], env=env, capture_output=True, text=True, check=True
    )
    pid = int(done.stdout)
    try:
        yield pid
    finally:
        os.kill(pid, 9)


def env_with(mark: str | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k != leaks.MARK}
    return env if mark is None else {**env, leaks.MARK: mark}


def pids(baseline: leaks.Baseline) -> set[int]:
    return {process.pid for process in leaks.leaked_processes(baseline)}


def test_finds_a_child() -> None:
    baseline = leaks.Baseline(run="none")
    with subprocess.Popen(SLEEP, env=env_with(None)) as child:
        assert child.pid in pids(baseline)
        child.kill()


def test_finds_a_daemon_by_the_mark_of_its_run() -> None:
    with running(SLEEP, env_with("run-a")) as pid:
        assert pid in pids(leaks.Baseline(run="run-a"))
        assert pid not in pids(leaks.Baseline(run="run-b"))


def test_finds_an_orphan_of_our_modules_that_lost_the_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "another_run", lambda: False)
    monkeypatch.setattr(leaks, "platform_runs", lambda: False)
    baseline = leaks.Baseline(run="run-a")
    with running([*SLEEP, "singularity_proxy.device"], env_with(None)) as pid:
        assert pid in pids(baseline)
        monkeypatch.setattr(leaks, "another_run", lambda: True)  # it may be that run's
        assert pid not in pids(baseline)
    monkeypatch.setattr(leaks, "another_run", lambda: False)
    with running([*SLEEP, "something.else"], env_with(None)) as pid:
        assert pid not in pids(baseline)


def test_accuses_no_session_of_a_platform_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "another_run", lambda: False)
    baseline = leaks.Baseline(run="run-a")
    there: list[int] = []  # a platform may run beside these tests
    monkeypatch.setattr(leaks.psutil, "process_iter", lambda: map(psutil.Process, there))
    with running([*SLEEP, "singularity_proxy.device"], env_with(None)) as session:
        with running([*SLEEP, "singularity_scheduler.agent"], env_with("run-b")) as agent:
            there[:] = session, agent
            assert pids(baseline) == {session}, "that agent is of other tests"
        with running([*SLEEP, "singularity_scheduler.agent"], env_with(None)) as agent:
            there[:] = session, agent
            assert pids(baseline) == {session, agent}, "nobody runs that agent: it was left"
        with subprocess.Popen([*SLEEP, "singularity_scheduler.agent"], env=env_with(None)) as child:
            there[:] = session, child.pid
            assert session not in pids(baseline)
            child.kill()


def test_kills_what_it_reports() -> None:
    baseline = leaks.Baseline(run="run-c")
    with subprocess.Popen(SLEEP, env=env_with("run-c")) as child:
        sentences = leaks.leaks(baseline, wait_s=0.0)
        assert any(f"process {child.pid} outlived the run" in s for s in sentences)
        assert child.wait(10) == -9


def test_tells_of_what_may_be_a_platforms_and_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "another_run", lambda: False)
    monkeypatch.setattr(leaks, "platform_runs", lambda: False)
    baseline = leaks.Baseline(run="run-d")
    with running([*SLEEP, "singularity_proxy.device"], env_with(None)) as pid:
        (sentence,) = [s for s in leaks.leaks(baseline, wait_s=0.0) if f"process {pid} " in s]
        assert "goes on, it may be a platform's" in sentence
        assert Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("base", ["/dev/shm", "/tmp"])
def test_finds_a_folder_that_nobody_uses(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "another_run", lambda: False)
    baseline = leaks.Baseline(run="none")
    folder = Path(tempfile.mkdtemp(prefix="singularity-leak-test-", dir=base))
    try:
        assert folder in leaks.leaked_folders(baseline)
        with (folder / "ring").open("w"):
            assert folder not in leaks.leaked_folders(baseline)
        assert folder in leaks.leaked_folders(baseline)
        monkeypatch.setattr(leaks, "another_run", lambda: True)  # it may be that run's
        assert folder not in leaks.leaked_folders(baseline)
    finally:
        shutil.rmtree(folder)
    assert folder not in leaks.leaked_folders(baseline)


def test_another_run_is_known_by_its_process(tmp_path: Path) -> None:
    other = tmp_path / f"{leaks.SCRATCH}other"
    other.mkdir()
    with subprocess.Popen(SLEEP) as process:
        assert not leaks.another_run(tmp_path)
        (other / leaks.PID_FILE).write_text(str(process.pid))
        assert leaks.another_run(tmp_path)
        process.kill()
    assert not leaks.another_run(tmp_path)


def test_finds_descriptors_that_stay_open(tmp_path: Path) -> None:
    baseline = leaks.Baseline(run="none")
    files = [(tmp_path / str(n)).open("w") for n in range(leaks.FD_SLACK + 1)]
    baseline.fd_growth["tests/x.py::test_x"] = 5
    grown = leaks.leaked_fds(baseline)
    assert grown[str(tmp_path / "0")] == 1
    for file in files:
        file.close()
    assert not leaks.leaked_fds(baseline)


def test_says_what_descriptors_that_stay_open_lead_to(tmp_path: Path) -> None:
    baseline = leaks.Baseline(run="none")
    with contextlib.ExitStack() as open_now:
        listener = open_now.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = open_now.enter_context(socket.create_connection(listener.getsockname()))
        open_now.enter_context(listener.accept()[0])
        for end in socket.socketpair():
            open_now.enter_context(end)
        named = open_now.enter_context(socket.socket(socket.AF_UNIX))
        named.bind("\0leaks-of-a-test")
        for number in range(leaks.FD_SLACK):
            open_now.enter_context((tmp_path / str(number)).open("w"))
        (told,) = [s for s in leaks.leaks(baseline, wait_s=0.0) if "file descriptors" in s]
        here, there = (f"127.0.0.1:{s.getsockname()[1]}" for s in (client, listener))
        assert f"{client.fileno()} AF_INET {here} > {there} ESTABLISHED" in told
        assert f"{listener.fileno()} AF_INET {there} LISTEN" in told
        assert told.count("AF_UNIX without a name") == 2
        assert f"{named.fileno()} AF_UNIX @leaks-of-a-test" in told
        assert str(tmp_path / "0") in told
    assert leaks.name_fds(baseline.targets) == []


def test_slices_are_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(matrix.FULL, raising=False)
    cases = list(range(1000))
    first = matrix.some_of(cases, 10)
    assert len(first) == 10
    assert first == sorted(first) == matrix.some_of(cases, 10)
    monkeypatch.setenv(matrix.SEED, "1")
    assert matrix.some_of(cases, 10) != first
    monkeypatch.setenv(matrix.FULL, "1")
    assert matrix.some_of(cases, 10) == cases
