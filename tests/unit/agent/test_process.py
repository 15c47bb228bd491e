"""Who a process is, whether it lives, how it is started and ended."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from singularity_proxy.capsule.launcher import (
    CapsuleSpec,
    ProcessLauncher,
    helper_environment,
    last_words,
    open_log,
    stripped_environment,
    trim_log,
)
from singularity_proxy.capsule.process import (
    ProcessIdentity,
    ProcessWatch,
    processes_with,
    uid_of,
)
from singularity_proxy.capsule.tree import has_ended, state_of
from singularity_proxy.errors import BadRequest, Conflict
from singularity_scheduler.agent import processes
from singularity_scheduler.agent.processes import end_marked, reap_orphans
from singularity_scheduler.agent.rights.owners import how_it_ended


def spec(path: Path, *argv: str, **changes: object) -> CapsuleSpec:
    values: dict[str, object] = {
        "argv": list(argv),
        "env": {"PATH": os.environ["PATH"]},
        "cwd": str(path),
        "log_path": str(path / "log"),
        **changes,
    }
    return CapsuleSpec(**values)  # type: ignore[arg-type]


def exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def child_of(*argv: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, **options)  # type: ignore[call-overload, no-any-return]


def wait_for_zombie(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.asyncio
async def test_exit_codes_and_signals_of_children(tmp_path: Path) -> None:
    launcher = ProcessLauncher()
    ended = []
    capsule = await launcher.start(spec(tmp_path, "/bin/sh", "-c", "exit 3"), ended.append)
    assert await capsule.wait(20)
    assert capsule.watch.exit_code == 3
    assert ended == [capsule.watch]
    capsule = await launcher.start(spec(tmp_path, "/bin/sleep", "600"))
    assert await capsule.wait(0.01) is False
    assert await capsule.end(5) == -signal.SIGTERM
    assert await capsule.end(5) == -signal.SIGTERM
    assert not exists(capsule.pid)
    assert capsule.signal(signal.SIGINT) is False


def grandchild(code: int, ends: int) -> int:
    """The pid of a process that is not our child and ends with `code` when nobody has the other end
    of the pipe `ends` open any more."""
    script = (
        "import os, sys\n"
        "if os.fork(): os._exit(0)\n"
        "print(os.getpid(), flush=True); sys.stdout.close(); os.close(1)\n"
        f"os.read({ends}, 1); os._exit({code})"
    )
    command = [sys.executable, "-c", script]
    return int(subprocess.check_output(command, pass_fds=[ends]))


def kernel_tells_codes() -> bool:
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor)) >= (6, 15)


@pytest.mark.asyncio
async def test_the_exit_code_of_a_stranger() -> None:
    ends, end = os.pipe()
    identity = ProcessIdentity.of(grandchild(6, ends))
    os.close(ends)
    plain, learning = ProcessWatch(identity), ProcessWatch(identity, learn_code=True)
    closed = ProcessWatch(identity, learn_code=True)
    os.close(end)
    assert await plain.wait(60)
    assert plain.exit_code is None
    closed.close()
    assert await learning.wait(60)
    # Whoever adopts orphans here may take longer to reap than we wait.
    assert learning.exit_code in ((6, None) if kernel_tells_codes() else (None,))
    assert learning.alive is False


@pytest.mark.asyncio
async def test_a_recycled_pid_is_not_the_old_process() -> None:
    own = ProcessIdentity.of(os.getpid())
    assert ProcessIdentity.from_json(own.to_json()) == own
    other = ProcessIdentity(own.pid, own.start - 1)
    ended = []
    watch = ProcessWatch(other, ended.append)
    assert watch.alive is False
    assert watch.signal(signal.SIGKILL) is False
    assert watch.signal_group(signal.SIGKILL) is False
    assert await watch.wait(60)
    assert ended == [watch]
    with pytest.raises(ProcessLookupError):
        ProcessIdentity.of(2**22 + 1)
    with pytest.raises(ProcessLookupError):
        uid_of(2**22 + 1)
    assert uid_of(own.pid) == os.getuid()


@pytest.mark.asyncio
async def test_a_zombie_counts_as_ended() -> None:
    child = child_of("/bin/true")
    wait_for_zombie(child.pid)
    watch = ProcessWatch(ProcessIdentity.of(child.pid))
    assert await watch.wait(60)
    assert watch.exit_code == 0
    child.returncode = 0


@pytest.mark.asyncio
async def test_two_watches_and_a_closed_one(tmp_path: Path) -> None:
    capsule = await ProcessLauncher().start(spec(tmp_path, "/bin/sleep", "600"))
    second = ProcessWatch(capsule.identity)
    silent: list[ProcessWatch] = []
    third = ProcessWatch(capsule.identity, silent.append)
    third.close()
    await capsule.end(0)
    assert await second.wait(60)
    assert second.exit_code == capsule.watch.exit_code == -signal.SIGKILL
    assert silent == []


@pytest.mark.asyncio
async def test_signals_ignored_by_the_parent_reach_the_child(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        capsule = await ProcessLauncher().start(spec(tmp_path, "/bin/sleep", "600"))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    capsule.signal(signal.SIGINT)
    assert await capsule.wait(10)
    assert capsule.watch.exit_code == -signal.SIGINT


@pytest.mark.asyncio
async def test_a_stopped_process_can_be_ended_in_good_order(tmp_path: Path) -> None:
    capsule = await ProcessLauncher().start(spec(tmp_path, "/bin/sleep", "600"))
    capsule.signal(signal.SIGSTOP)
    assert await capsule.end(20) == -signal.SIGTERM


@pytest.mark.asyncio
async def test_no_descriptor_and_no_variable_goes_along(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    code = "import os; print(sorted(os.listdir('/proc/self/fd')), sorted(os.environ))"
    capsule = await ProcessLauncher().start(
        spec(tmp_path, sys.executable, "-S", "-c", code, env={"A": "1", "LC_ALL": "C"})
    )
    await capsule.wait(20)
    os.close(read)
    os.close(write)
    assert last_words(str(tmp_path / "log")) == "['0', '1', '2', '3'] ['A', 'LC_ALL']"


@pytest.mark.asyncio
async def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    launcher = ProcessLauncher()
    (tmp_path / "plain").write_text("x")
    for bad, sentence in (
        (spec(tmp_path, "/no/such"), "'/no/such' cannot be started"),
        (spec(tmp_path, str(tmp_path / "plain")), "Permission denied"),
        (spec(tmp_path, "/bin/true", cwd="/no/such"), "cannot start in the folder '/no/such'"),
        (spec(tmp_path, "/bin/true", "a\0b"), "null byte"),
        (spec(tmp_path), "no command"),
    ):
        with pytest.raises(BadRequest, match=sentence):
            await launcher.start(bad)


def test_logs_of_a_hostile_folder(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret\n")
    link, hard, pipe = tmp_path / "link", tmp_path / "hard", tmp_path / "pipe"
    link.symlink_to(secret)
    hard.hardlink_to(secret)
    os.mkfifo(pipe)
    for path in (link, hard, pipe):
        with pytest.raises(Conflict, match="was replaced"):
            open_log(str(path), None, None)
        assert last_words(str(path), os.getuid()) == ""
        assert trim_log(str(path), 1) == 0
    assert secret.read_text() == "the secret\n"
    assert last_words(str(tmp_path / "none")) == ""


def test_a_long_log_keeps_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fd = open_log(str(log), None, None)
    os.write(fd, b"a" * 1000 + b"\nlast\n")
    assert trim_log(str(log), 2000) == 0
    assert trim_log(str(log), 100) == 1006 - 50
    os.write(fd, b"next\n")
    os.close(fd)
    text = log.read_text()
    assert len(text) == 55
    assert text.endswith("a\nlast\nnext\n")
    assert last_words(str(log)) == "next"
    log.write_text(text + "------\n======\n\n")
    assert last_words(str(log)) == "next"


def test_a_kernels_greeting_is_not_told_as_the_reason_of_its_end() -> None:
    greeting = "--existing /tmp/singularity-1/kernel.json"
    assert how_it_ended(3, greeting) == "its process ended with exit code 3"
    assert how_it_ended(-9, greeting) == "its process was ended by signal 9"
    assert how_it_ended(1, "MemoryError") == "its process ended with exit code 1 (MemoryError)"
    assert how_it_ended(1) == "its process ended with exit code 1"
    assert how_it_ended(None) == "its process ended"


def test_the_environment_of_a_capsule() -> None:
    kept = stripped_environment(
        {
            "JUPYTERHUB_API_TOKEN": "s",
            "JPY_PARENT_PID": "1",
            "JPY_SESSION_NAME": "n",
            "SINGULARITY_API_URL": "u",
            "SINGULARITY_SESSION": "other",
            "SINGULARITY_TIER": "basic",
            "HOME": "/h",
        }
    )
    assert kept == {
        "JPY_SESSION_NAME": "n",
        "SINGULARITY_TIER": "basic",
        "HOME": "/h",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }


def test_the_environment_of_a_helper() -> None:
    """It runs as the session's user, and the store's credentials are the agent's."""
    kept = helper_environment(
        {
            "AWS_ACCESS_KEY_ID": "s",
            "AWS_ROLE_ARN": "s",
            "AZURE_CLIENT_ID": "s",
            "GOOGLE_APPLICATION_CREDENTIALS": "s",
            "GOOGLE_SERVICE_ACCOUNT": "s",
            "STORE_SAS_TOKEN": "s",
            "HOME": "/h",
            "PATH": "/p",
        }
    )
    assert kept == {"HOME": "/h", "PATH": "/p"}


@pytest.mark.asyncio
async def test_marked_processes_are_found_and_ended() -> None:
    marker = f"AGENT_TEST_MARK={os.urandom(6).hex()}"
    name, _, value = marker.partition("=")
    loop = "while :; do sleep 600 & sleep 0.05; done"
    child = child_of("/bin/sh", "-c", loop, env={name: value, "PATH": os.environ["PATH"]})
    while len(list(processes_with(marker.encode(), in_environment=True))) <= 2:
        await asyncio.sleep(0.02)
    assert list(processes_with(marker.encode()[:-1], in_environment=True)) == []
    await end_marked(marker.encode())
    assert list(processes_with(marker.encode(), in_environment=True)) == []
    child.returncode = -9


@pytest.mark.asyncio
async def test_orphans_are_reaped_and_watched_ones_keep_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capsule = await ProcessLauncher().start(spec(tmp_path, "/bin/sh", "-c", "exit 4"))
    other = child_of("/bin/true")
    for pid in (capsule.pid, other.pid):
        wait_for_zombie(pid)
    reap_orphans()
    assert capsule.watch.exit_code == 4
    assert exists(other.pid)  # a thread may be about to wait for it
    monkeypatch.setattr(processes, "ORPHAN_S", 0.0)
    reap_orphans()
    assert not exists(other.pid)
    other.returncode = 0


@pytest.mark.asyncio
async def test_whoever_waits_for_a_helper_learns_how_it_ended() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, reap_orphans)
    try:
        for _ in range(20):
            done = await asyncio.to_thread(
                subprocess.run, ["/bin/sh", "-c", "exit 3"], timeout=10, check=False
            )
            assert done.returncode == 3
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)


def test_a_process_that_cannot_be_looked_at_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that starts with too many open files ends no session for that."""
    me = ProcessIdentity.of(os.getpid())
    assert not has_ended(me)
    assert has_ended(ProcessIdentity(me.pid, me.start - 1))
    assert has_ended(ProcessIdentity(2**22 + 1, 1))

    def too_many(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("builtins.open", too_many)
    with pytest.raises(OSError, match="too many open files"):
        has_ended(me)
    with pytest.raises(OSError, match="too many open files"):
        state_of(me.pid)
