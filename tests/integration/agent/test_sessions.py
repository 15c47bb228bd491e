"""Sessions of a real agent: start, signal, end, what they see and what they leave."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from singularity_proxy import HIDDEN_DEVICES
from singularity_proxy.errors import BadRequest, Conflict, Forbidden, NotFound
from singularity_scheduler.agent.relays.client_places import CURVE
from support.agent import AgentBox, alive, sleeper, stop, until
from support.uids import needs_own_uids

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def agent() -> AsyncIterator[AgentBox]:
    async with AgentBox() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def box(agent: AgentBox) -> AsyncIterator[AgentBox]:
    """One agent for the tests of this file that neither end it nor want settings of their own."""
    yield agent
    await agent.clear()


async def test_a_session_runs_as_its_user_without_secrets_and_ends_with_its_code(
    box: AgentBox,
) -> None:
    code = (
        "import os, sys; e = os.environ; sys.stdout = open('out', 'w')\n"
        "print(os.getuid(), os.getpgid(0) == os.getpid(), os.read(0, 1))\n"
        "print(sorted(k for k in e if k.startswith(('JUPYTERHUB_', 'JPY_', 'SINGULARITY_'))))\n"
        "print(*(e[k] for k in ('SINGULARITY_DEVICES', 'SINGULARITY_DEVICE_TYPE')))\n"
        "print('CUDA_VISIBLE_DEVICES=hidden' in open('/proc/self/environ').read().split('\\0'))\n"
        "print(sorted(os.listdir('/proc/self/fd')))\n"
        "sys.exit('a last word')"
    )
    env = {
        **os.environ,
        "JUPYTERHUB_API_TOKEN": "secret",
        "JPY_PARENT_PID": "1",
        "JPY_SESSION_NAME": "a.ipynb",
        "SINGULARITY_API_URL": "http://x",
        "SINGULARITY_SESSION": "another",
    }
    identity = await box.call("identity", user="alice")
    session = await box.python(code, env=env, virtual_devices=3)
    data = await box.event("process.exited", session)
    assert data == {
        "exit_code": 1,
        "reason": "its process ended with exit code 1 (a last word)",
    }
    lines = (box.work / "out").read_text().splitlines()
    assert lines[0] == f"{identity['uid']} True b''"
    assert "SINGULARITY_SESSION" in lines[1]
    assert "JPY_SESSION_NAME" in lines[1]
    for secret in ("JUPYTERHUB", "JPY_PARENT_PID", "SINGULARITY_API"):
        assert secret not in lines[1]
    # out is 3, the listing itself 4
    assert lines[2:] == ["3 cpu", "True", "['0', '1', '2', '3', '4']"]
    assert (await box.session(session))["alive"] is False
    assert not box.folder(session).exists()
    assert await box.end(session) == {"exit_code": 1}
    assert await box.end(session) == {"exit_code": None}


async def test_the_end_takes_everything_along_that_the_session_started(box: AgentBox) -> None:
    session = await box.worker("open", "fork", "sleep")
    await box.logged(session, "child ready")
    pids = [p.pid for p in box.processes(session)]
    assert len(pids) == 2
    assert (box.shm / session).is_dir()
    assert await box.end(session, grace_s=5) == {"exit_code": -signal.SIGTERM}
    # Not even as zombies: what left its group became the agent's child and was reaped.
    await until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert not (box.shm / session).exists()
    assert not box.folder(session).exists()


async def test_interrupt_reaches_the_group_and_a_deaf_process_is_killed(box: AgentBox) -> None:
    deaf = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    try: time.sleep(60)\n"
        "    except KeyboardInterrupt: print('interrupted', flush=True)\n"
    )
    session = await box.python(deaf)
    await box.logged(session, "ready")
    await box.call("session.signal", session=session, signum=signal.SIGINT)
    await box.logged(session, "interrupted")
    assert await box.end(session, grace_s=0.1) == {"exit_code": -signal.SIGKILL}
    with pytest.raises(NotFound):
        await box.call("session.signal", session=session, signum=signal.SIGINT)


async def test_bad_starts_are_one_sentence_and_leave_nothing(box: AgentBox) -> None:
    cases = [
        ({"argv": ["/no/such/program"]}, "cannot be started"),
        ({"cwd": "/no/such/folder"}, "cannot start in the folder"),
        ({"owner_pid": 2**22 - 1}, "there is no process"),
        ({"argv": "ls"}, "must be a list"),
        ({"mode": "magic"}, "unknown"),
        ({"connection": {"transport": "tcp", "ip": "127.0.0.1"}}, "shell_port"),
    ]
    for change, sentence in cases:
        argv = change.pop("argv", [sys.executable, "-c", "0"])
        with pytest.raises(BadRequest, match=sentence):
            await box.start(argv, **change)  # type: ignore[arg-type]
    for devices in (0, 10**6):
        with pytest.raises(BadRequest, match="between 1 and"):
            await box.python("0", virtual_devices=devices)
    [hello] = await box.fleet.hello()
    assert hello["sessions"] == []
    assert list((box.runtime / "s").iterdir()) == []
    assert list(box.shm.iterdir()) == []


async def test_a_repeated_start_is_answered_again_and_not_done_again(box: AgentBox) -> None:
    params = {
        "session": "0123456789ab",
        "user": "alice",
        "kind": "batch",
        "tier": "basic",
        "virtual_devices": 1,
        "launch": {
            "mode": "capsule",
            "argv": ["/bin/sleep", "600"],
            "env": {},
            "cwd": "/",
            "owner_pid": None,
        },
    }
    first = await box.call("session.start", epoch=0, seq=5, **params)
    assert await box.call("session.start", epoch=0, seq=5, **params) == first
    with pytest.raises(Conflict, match="started before"):
        await box.call("session.start", epoch=0, seq=6, **params)


async def test_a_session_without_its_owner_ends_after_the_grace_time() -> None:
    async with AgentBox("--NodeAgent.orphan_grace_s=0.2") as box:
        owner = sleeper(**await box.user_options())
        session = await box.worker("sleep", owner_pid=owner.pid)
        await box.logged(session, "sleeping")
        stop(owner)
        data = await box.event("process.exited", session)
        assert f"its Jupyter server (process {owner.pid}) is gone" in data["reason"]
        assert box.everything_of(session) == []


async def test_a_terminal_run_joins_with_its_own_process(box: AgentBox) -> None:
    options = await box.user_options()
    own = sleeper(**options)
    session = await box.start([], mode="joined", owner_pid=own.pid)
    env = box.started["env"]
    assert env["SINGULARITY_SESSION"] == session
    assert env["CUDA_VISIBLE_DEVICES"] == HIDDEN_DEVICES
    assert box.started["pid"] == own.pid
    child = sleeper(env={**os.environ, **env}, **options)
    stop(own)
    data = await box.event("process.exited", session)
    assert data["exit_code"] in (-signal.SIGKILL, None)  # a kernel from 6.15 on tells
    assert child.wait(10) == -signal.SIGKILL


@pytest.mark.root
@needs_own_uids
async def test_users_are_kept_apart(box: AgentBox) -> None:
    alice = await box.call("identity", user="alice")
    bob = await box.call("identity", user="bob")
    assert alice["mapped"]
    assert bob["mapped"]
    assert alice["uid"] != bob["uid"]
    session = await box.worker("sleep")
    await box.logged(session, "sleeping")
    # A foreign process cannot be joined, and so not be ended by the session's end; nor can a
    # session belong to one.
    foreign = sleeper(user=bob["uid"])
    with pytest.raises(Forbidden, match="runs as uid"):
        await box.start([], mode="joined", owner_pid=foreign.pid)
    for pid in (foreign.pid, os.getpid(), box.agent_pid):
        with pytest.raises(Forbidden, match="sessions of alice run as uid"):
            await box.worker("sleep", owner_pid=pid)
    [hello] = await box.fleet.hello()
    assert [one["session"] for one in hello["sessions"]] == [session]
    stop(foreign)


async def test_a_joined_session_that_cannot_start_leaves_the_process_alone() -> None:
    async with AgentBox() as box:
        options = await box.user_options()
        own = sleeper(**options)
        (box.runtime / "s").rmdir()
        with pytest.raises(Exception, match="could not be started"):
            await box.start([], mode="joined", owner_pid=own.pid)
        assert own.poll() is None
        stop(own)


async def test_the_log_of_a_session_is_bounded() -> None:
    code = "import time\nprint('x' * 300000, flush=True)\nprint('last', flush=True)\ntime.sleep(60)"
    async with AgentBox("--NodeAgent.log_bytes=100000") as box:
        session = await box.python(code)
        await box.logged(session, "last")
        path = box.folder(session) / "capsule.log"
        await until(lambda: path.stat().st_size <= 50000)
        assert path.read_text().endswith("x\nlast\n")


async def test_a_second_agent_on_the_same_folder_is_refused_in_one_sentence(box: AgentBox) -> None:
    second = await asyncio.to_thread(
        subprocess.run, box.fleet.command(), capture_output=True, text=True, timeout=60
    )
    assert second.returncode == 1
    assert second.stderr.count("\n") == 1
    assert "another node agent already runs" in second.stderr
    assert len(await box.fleet.hello()) == 1


async def test_an_agent_that_nobody_needs_ends_and_leaves_nothing() -> None:
    async with AgentBox("--NodeAgent.idle_exit_s=0.5") as box:
        session = await box.worker("sleep")
        pid = box.agent_pid
        await box.fleet.stop()
        await asyncio.sleep(1.5)
        assert alive(pid)  # the session needs it
        await box.fleet.start()
        await box.end(session)
        await box.fleet.stop()
        await until(lambda: not alive(pid))
        assert not box.runtime.exists()
        assert not box.shm.exists()
        assert not (box.root / "state" / "agent.json").exists()
        await box.fleet.start()


async def test_sigterm_ends_everything_within_four_seconds() -> None:
    async with AgentBox(double=True) as box:
        deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on'); time.sleep(99)"
        sessions = [await box.python(deaf) for _ in range(3)]
        for session in sessions:
            await until(lambda s=session: len(box.processes(s)) == 1)  # type: ignore[misc]
        await box.end_agent(signal.SIGTERM)
        assert "did not stop in time" not in box.agent_log(), "it has less than 4 s"
        assert [p for s in sessions for p in box.everything_of(s)] == []
        assert not box.shm.exists()
        await box.fleet.start()


async def test_a_kernel_port_that_is_taken_is_named_and_nothing_is_left() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        names = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
        connection = {
            "transport": "tcp",
            "ip": "127.0.0.1",
            "key": "k",
            "signature_scheme": "hmac-sha256",
            "kernel_name": "x",
            **dict.fromkeys(names, port),
            **dict(zip(CURVE, ("p" * 40, "s" * 40), strict=True)),
        }
        async with AgentBox() as box:
            with pytest.raises(Conflict, match=str(port)) as refused:
                await box.worker("sleep", connection=connection)
            assert "port" in refused.value.fields
            assert list((box.runtime / "s").iterdir()) == []


async def test_only_a_session_with_namespaces_has_an_end_to_obey() -> None:
    async with AgentBox("--NodeAgent.capsule=process") as box:
        session = await box.python("import time; print('runs'); time.sleep(600)")
        await box.logged(session, "runs")
        assert not (box.runtime / "l").exists()
        await box.end(session)
