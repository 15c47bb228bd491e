"""JupyterHub, its proxy, the scheduler service and the node agent are killed, alone and together,
while a notebook is at work: it goes on, and however the platform ends it is in the store."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
import pytest_asyncio
from singularity_proxy.capsule.supervisor import RestartPolicy
from singularity_spawner.platform import parts, run
from singularity_spawner.platform.ports import free_ports
from singularity_spawner.platform.processes import end_run, of_run
from support.capsules import needs_criu
from support.hub_notebooks import Page, leave_all, session_of
from support.hub_platform import left_of, running_platform, state_folder
from support.hub_up import PARTS, end_all, kill, pid_of, platform_of, settings_of, up
from support.matrix import some_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_criu, pytest.mark.timeout(300)]

COUNT = """\
import time
for number in range({n}):
    print(number, flush=True)
    time.sleep(0.1)
"""

HELD = """\
import os, time
for number in range({n}):
    while number == 10 and not os.path.exists({go!r}):
        time.sleep(0.01)
    print(number, flush=True)
    time.sleep(0.1)
"""
"""The same; it waits for a file before it prints its eleventh line."""

PAIRS = list(itertools.combinations(PARTS, 2))


@pytest_asyncio.fixture(loop_scope="module")
async def folder():
    made = state_folder()
    yield made
    await leave_all()
    await end_all(made)
    shutil.rmtree(made)


def port():
    return str(free_ports(1)[0])


async def opened(platform, page):
    url = await platform.start_server("alice", {})
    return await page.open(url, await platform.user_token("alice"))


async def again(platform, page):
    """The page connects again, as JupyterLab does by itself."""
    page.close()
    return await page.open(f"{platform.url}user/alice/", await platform.user_token("alice"))


def share_of(pid):
    """Where the login session of a process stands among others (sched(7), autogroups)."""
    return Path(f"/proc/{pid}/autogroup").read_text().split(" ", 1)[1].strip()


async def served(platform):
    """Wait until everything of the platform answers, also through the Hub's proxy."""
    async with asyncio.timeout(60):
        while await platform.missing():
            await asyncio.sleep(0.05)


# -- one or two parts are killed ------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hub():
    told = []
    often = RestartPolicy(limit=1000)
    async with running_platform(devices=1, tell=told.append, restarts=often) as running:
        yield running, told
    await leave_all()


@pytest.mark.parametrize("victims", [*((part,) for part in PARTS), *some_of(PAIRS, 3)])
async def test_a_notebook_goes_on_when_parts_of_the_platform_are_killed(hub, victims):
    platform, told = hub
    page = await opened(platform, Page())
    go = Path(tempfile.gettempdir()) / f"go-{page.id}"
    try:
        await page.run("x = 41")
        code, seen = COUNT.format(n=60), 4
        if "proxy" in victims:  # what it has and has not passed on goes with it
            code, seen = HELD.format(n=60, go=str(go)), 10
        cell = await page.execute(code)
        await page.until(lambda: len(page.text(cell).split()) >= seen)
        told.clear()
        await kill(platform.settings, *victims)
        go.touch()
        await served(platform)
        if "proxy" in victims:  # through it the page was connected
            await again(platform, page)
        await page.until(lambda: page.replies(cell))
        assert page.replies(cell) == ["ok"]
        assert [int(line) for line in page.text(cell).split()] == list(range(60))
        session = await session_of(platform.service(), "alice", "live")
        assert session["incarnation"] == 1
        assert await page.run("print(x + 1)") == "42"
        service = pid_of(platform.settings, "service")
        assert os.getpriority(os.PRIO_PROCESS, service) == parts.SERVICE_NICENESS
        assert share_of(service) == f"nice {parts.SERVICE_NICENESS}"
        agent = pid_of(platform.settings, "agent")
        assert (os.getpriority(os.PRIO_PROCESS, agent), share_of(agent)) == (0, "nice 0")
        assert await page.run("import os; print(os.nice(0))") == "0"
        own = [victim for victim in victims if victim != "agent"]  # which the service tells
        assert len(told) == len(own)
        for line in told:
            assert " was killed (SIGKILL); " in line
            assert line.endswith(" it is started again.")
    finally:
        go.unlink(missing_ok=True)
        await page.server.rest("DELETE", f"api/kernels/{page.kernel}", None)
        page.close()
        await platform.stop_server("alice")


@pytest.mark.parametrize("victim", ["hub", "proxy", "service"])
async def test_a_part_that_hangs_is_ended_and_started_again(victim, monkeypatch):
    monkeypatch.setattr(parts, "SILENCE_S", 1.5)
    monkeypatch.setattr(parts, "SERVICE_SILENCE_S", 1.5)
    told = []
    async with running_platform(devices=1, tell=told.append) as platform:
        page = await opened(platform, Page())
        await page.run("x = 41")
        told.clear()
        stopped = pid_of(platform.settings, victim)
        await kill(platform.settings, victim, signum=signal.SIGSTOP)
        await served(platform)
        # A machine at its limit may leave the other ones without an answer too.
        assert any("did not answer for 1.5 s and was ended" in line for line in told)
        assert stopped not in {process.pid for process in of_run(platform.settings.instance)}
        await again(platform, page)
        assert await page.run("print(x + 1)") == "42"
        page.close()


# -- `up` ends ------------------------------------------------------------------------------------


async def next_day(folder, *options):
    """The next `up` finds the notebook as it was."""
    async with up(folder, "--port", port(), *options) as running:
        await running.until("ready in")
        platform = platform_of(folder)
        session = await session_of(platform.service(), "alice")
        assert session["process_state"] == "suspended"
        page = await opened(platform, Page())
        assert await page.run("print(x + 1)") == "42"
        assert (await session_of(platform.service(), "alice"))["id"] == session["id"]
        page.close()
        code, _, _ = await running.end(signal.SIGTERM)
        assert code == 0
    assert left_of(platform.settings) == []


async def started(running, folder, code="x = 41"):
    """A notebook that has run `code`, on what this `up` runs."""
    await running.until("ready in")
    platform = platform_of(folder)
    page = await opened(platform, Page())
    await page.run(code)
    return platform, page


async def test_a_killed_hub_is_started_again_and_told(folder):
    """V4 of the chaos findings."""
    async with up(folder, "--port", port()) as running:
        platform, page = await started(running, folder)
        await kill(platform.settings, "hub")
        await served(platform)
        assert await page.run("print(x + 1)") == "42"
        page.close()
        code, out, err = await running.end(signal.SIGINT)
    assert code == 0
    assert err == (
        "JupyterHub was killed (SIGKILL); servers, notebooks and runs go on, it is started again.\n"
    )
    assert "1 notebook waits in the store for the next start." in out
    assert "Everything is stopped" in out
    assert left_of(platform.settings) == []
    await next_day(folder)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
async def test_notebooks_are_stored_although_nobody_reads(folder, signum):
    async with up(folder, "--port", port()) as running:
        platform, page = await started(running, folder)
        page.close()
        for name in (1, 2):  # the terminal is gone
            running.process._transport.get_pipe_transport(name).close()
        running.process.send_signal(signum)
        async with asyncio.timeout(60):
            await running.process.wait()
    assert left_of(platform.settings) == []
    await next_day(folder)


@pytest.mark.parametrize("victim", PARTS)
async def test_parts_that_are_killed_while_notebooks_are_stored(folder, victim):
    async with up(folder, "--port", port()) as running:
        platform, page = await started(running, folder)
        page.close()
        running.process.send_signal(signal.SIGINT)
        await running.until("Suspending 1 notebook")
        os.kill(pid_of(platform.settings, victim), signal.SIGKILL)
        code, out, err = await running.end(seconds=90)
        assert code == 0, err
        assert "1 notebook waits in the store for the next start." in out, err
    assert left_of(platform.settings) == []
    await next_day(folder)


async def test_a_hub_that_dies_at_each_start_ends_the_platform(folder):
    async with up(folder, "--port", port()) as running:
        platform, page = await started(running, folder)
        page.close()
        platform.folder.hub_config.write_text("raise ValueError('a mistake of somebody')\n")
        os.kill(pid_of(platform.settings, "hub"), signal.SIGKILL)
        code, out, err = await running.end(seconds=180)
    assert code == 1
    lines = err.splitlines()
    assert len(lines) == 6
    assert lines[-1] == (
        "JupyterHub ended by itself with exit code 1, after it was started again 5 times and did "
        f"not answer once; the platform stops. Why is in {folder}/hub.log."
    )
    assert "1 notebook waits in the store for the next start." in out
    assert left_of(platform.settings) == []
    await next_day(folder)


async def test_a_service_that_cannot_be_started_leaves_everything_running(folder):
    async with up(folder, "--port", port()) as running:
        platform, page = await started(running, folder)
        session = await session_of(platform.operator(), "alice")
        page.close()
        settings = platform.settings
        ledger = folder / "scheduler" / "ledger.sqlite"
        os.rename(ledger, folder / "ledger.sqlite")
        ledger.mkdir()
        os.kill(pid_of(settings, "service"), signal.SIGKILL)
        code, _, err = await running.end(seconds=120)
    try:
        assert code == 1
        assert "The scheduler service ended by itself with exit code 1, after it was" in err
        assert "so they are left running, with the rest of the platform: start it again" in err
        assert pid_of(settings, "agent")
        ledger.rmdir()
        os.rename(folder / "ledger.sqlite", ledger)
        async with up(folder) as running:
            await running.until("ready in")
            found = await session_of(platform.operator(), "alice", "live")
            assert (found["id"], found["incarnation"]) == (session["id"], 1)
            await again(platform, page)
            assert await page.run("print(x + 1)") == "42"
            page.close()
            code, out, _ = await running.end(signal.SIGINT)
            assert code == 0
            assert "1 notebook waits in the store" in out
    finally:
        await end_run(settings.instance, 1.0)
    assert left_of(settings) == []


async def test_an_error_of_the_platform_itself_loses_no_notebook(folder, monkeypatch, capsys):
    broken = asyncio.Event()

    async def fails(*_):
        await broken.wait()
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(run, "_until_stopped", fails)
    platform = run.Platform(folder, devices=1, port=int(port()))
    running = asyncio.ensure_future(run._run(platform))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        while "ready in" not in capsys.readouterr().out:
            await asyncio.sleep(0.1)
    page = await opened(platform, Page())
    await page.run("x = 41")
    page.close()
    settings = platform.settings
    broken.set()
    assert await running == 1
    out, err = capsys.readouterr()
    assert "because of an error of its own (RuntimeError: a mistake of ours); more is in" in err
    assert "1 notebook waits in the store for the next start." in out
    assert left_of(settings) == []
    assert "a mistake of ours" in (folder / "hub.log").read_text()
    await next_day(folder)


# -- `up` is killed -------------------------------------------------------------------------------


async def test_the_next_up_takes_over_what_a_killed_one_left(folder):
    async with up(folder, "--port", port()) as running:
        platform, page = await started(running, folder)
        cell = await page.execute(COUNT.format(n=120))
        settings = platform.settings
        await running.end(signal.SIGKILL)
    try:
        os.kill(pid_of(settings, "hub"), signal.SIGKILL)  # nobody starts it again now
        async with up(folder) as running:
            await running.until("goes on, with its notebooks and runs")
            await running.until("ready in")
            assert settings_of(folder) == settings
            await page.until(lambda: page.replies(cell) == ["ok"])
            assert [int(line) for line in page.text(cell).split()] == list(range(120))
            await kill(settings, "service", "proxy")  # and the new one keeps all of it running
            await served(platform)
            await again(platform, page)
            assert await page.run("print(x + 1)") == "42"
            page.close()
            code, out, _ = await running.end(signal.SIGINT)
            assert code == 0
            assert "1 notebook waits in the store" in out
    finally:
        await end_run(settings.instance, 1.0)
    assert left_of(settings) == []
    await next_day(folder)


@pytest.mark.parametrize("also", [(), ("service",), ("service", "agent")])
async def test_a_different_up_stores_what_a_killed_one_left(folder, also):
    async with up(folder, "--port", port()) as running:
        platform, page = await started(running, folder)
        page.close()
        settings = platform.settings
        await running.end(signal.SIGKILL)
    try:
        for part in also:
            os.kill(pid_of(settings, part), signal.SIGKILL)
        await next_day(folder, "--devices", "1")
    finally:
        await end_run(settings.instance, 1.0)
    assert left_of(settings) == []


async def test_an_up_that_is_killed_while_it_stores_notebooks(folder):
    async with up(folder, "--port", port()) as running:
        platform, page = await started(running, folder)
        page.close()
        settings = platform.settings
        running.process.send_signal(signal.SIGINT)
        await running.until("Suspending 1 notebook")
        await running.end(signal.SIGKILL)
    try:
        async with up(folder) as running:
            await running.until("ready in")
            await again(platform_of(folder), page)
            assert await page.run("print(x + 1)") == "42"
            page.close()
            code, _, err = await running.end(signal.SIGINT)
            assert (code, err) == (0, "")
    finally:
        await end_run(settings.instance, 1.0)
    assert of_run(settings.instance) == set()
