"""`jupyter singularity up` as a process: refusals, the way it stops, clean-up after a kill."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import stat

import pytest
import pytest_asyncio
from singularity_scheduler.fleet import namespaces
from singularity_spawner.platform.ports import free_ports
from singularity_spawner.platform.processes import end_run, of_run
from support.hub_platform import left_of, state_folder
from support.hub_up import end_all, settings_of, up

WHY_NOT = namespaces.why_not()


@pytest_asyncio.fixture
async def folder():
    made = state_folder()
    yield made
    await end_all(made)
    shutil.rmtree(made)


@pytest.mark.asyncio
async def test_it_says_how_to_log_in_and_stops_everything(folder):
    async with up(folder, "--port", str(free_ports(1)[0])) as running:
        line = await running.until("ready in")
        assert line.split()[0] == settings_of(folder).url
        password = (await running.until("Log in")).split()[-1]
        assert password == (folder / "password").read_text().strip()
        for name in ("password", "admin_password", "platform_token", "hub.sqlite", "hub.log"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
        settings = settings_of(folder)
        assert of_run(settings.instance)

        async with up(folder) as second:
            code, _, err = await second.end()
            assert code == 2
            assert err.count("\n") == 1
            assert "A platform already runs at http://127.0.0.1:" in err
        other = state_folder()
        try:
            async with up(other, "--port", str(settings_of(folder).port)) as second:
                code, _, err = await second.end()
                assert code == 2
                assert err.count("\n") == 1
                assert f"Port {settings_of(folder).port} on 127.0.0.1 is taken" in err
        finally:
            shutil.rmtree(other)

        code, out, err = await running.end(signal.SIGINT)
        assert (code, err) == (0, "")
        assert "Everything is stopped" in out
    assert left_of(settings) == []


@pytest.mark.asyncio
async def test_a_test_that_fails_leaves_nothing_running(folder):
    async def fails():
        async with up(folder, "--port", str(free_ports(1)[0])) as running:
            await running.until("ready in")
            assert of_run(settings_of(folder).instance)
            raise AssertionError("what a test found")

    with pytest.raises(AssertionError, match="what a test found"):
        await fails()
    assert left_of(settings_of(folder)) == []


@pytest.mark.asyncio
async def test_what_a_killed_run_left_goes_on_at_the_next_start(folder):
    async with up(folder, "--port", str(free_ports(1)[0])) as running:
        await running.until("ready in")
        first = settings_of(folder)
        await running.end(signal.SIGKILL)
    before = {p.pid for p in of_run(first.instance)}
    assert before, "the rest of the platform goes on"
    try:
        async with up(folder) as running:
            await running.until("The platform of an `up` that was killed goes on")
            await running.until("ready in")
            assert settings_of(folder) == first
            assert before <= {p.pid for p in of_run(first.instance)}
            code, _, _ = await running.end(signal.SIGTERM)
            assert code == 0
    finally:
        await end_run(first.instance, 1.0)
    assert left_of(first) == []


@pytest.mark.asyncio
async def test_what_a_killed_run_left_is_ended_by_one_that_is_to_be_different(folder):
    async with up(folder, "--port", str(free_ports(1)[0])) as running:
        await running.until("ready in")
        first = settings_of(folder)
        await running.end(signal.SIGKILL)
    try:
        async with up(folder, "--port", str(first.port), "--devices", "1") as running:
            await running.until("ready in")
            assert left_of(first) == []
            second = settings_of(folder)
            assert second.instance != first.instance
            code, _, _ = await running.end(signal.SIGTERM)
            assert code == 0
    finally:
        await end_run(first.instance, 1.0)
    assert left_of(second) == []


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.asyncio
async def test_networks_of_a_killed_run_are_removed_at_the_next_start(folder):
    port = str(free_ports(1)[0])
    async with up(folder, "--port", port, "--nodes", "2", "--netns", "--devices", "1") as running:
        assert "devices: node-1/cpu:0, node-2/cpu:0" in await running.until("ready in")
        assert "have a network of their own" in await running.until("nothing beyond")
        first = settings_of(folder)
        assert set(first.netns) == {"node-1", "node-2"}
        await running.end(signal.SIGKILL)
    try:
        assert all(namespaces.exists(name) for name in first.netns.values())
        async with up(folder, "--port", port) as running:
            assert "devices: cpu:0, cpu:1" in await running.until("ready in")
            assert left_of(first) == []
            assert (await running.end(signal.SIGTERM))[0] == 0
    finally:
        await end_run(first.instance, 1.0)
        namespaces.remove(first.network)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nodes", "0"], "--nodes takes a number from 1 to 16"),
        (["--nodes", "17"], "--nodes takes"),
    ],
)
@pytest.mark.asyncio
async def test_numbers_of_nodes_that_cannot_be(folder, options, sentence):
    async with up(folder, *options) as running:
        code, _, err = await running.end()
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.asyncio
async def test_stopping_while_it_starts_leaves_nothing(folder):
    async with up(folder) as running:
        await running.until("Starting JupyterHub")
        async with asyncio.timeout(30):
            while not (settings := settings_of(folder)) or not of_run(settings.instance):
                await asyncio.sleep(0.05)
        code, out, _ = await running.end(signal.SIGTERM)
        assert code == 0
        assert "nothing is left running" in out
    assert left_of(settings) == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "expected", "says"),
    [
        (["--devices", "0"], 2, "--devices takes a number from 1 to"),
        (["--devices", "1000000"], 2, "--devices takes a number from 1 to"),
        (["--devices", "many"], 64, "--devices: expected an int"),
        (["--port", "99999"], 2, "no port number"),
        (["--prot", "8000"], 64, "there is no option --prot; did you mean --port?"),
    ],
)
async def test_bad_arguments_get_one_sentence(folder, options, expected, says):
    async with up(folder, *options) as running:
        code, _, err = await running.end()
    assert code == expected
    assert says in err
    assert not (folder / "platform.json").exists()


@pytest.mark.asyncio
async def test_a_port_of_another_program_is_left_alone(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with up(folder, "--port", str(taken.getsockname()[1])) as running:
            code, _, err = await running.end()
    assert code == 2
    assert "is taken by another program; nothing was started" in err


@pytest.mark.asyncio
async def test_a_state_folder_that_cannot_be_made_gets_a_sentence(folder):
    (folder / "file").write_text("")
    async with up(folder / "file" / "below") as running:
        code, _, err = await running.end()
    assert code == 1
    assert err.startswith("The platform could not be started: ")
    assert err.count("\n") == 1
