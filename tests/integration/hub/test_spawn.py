"""A real Hub with `configure` and the ready Spawner: form, REST, identity, restart, release."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
import pytest_asyncio
import requests
from singularity_proxy.errors import SingularityError
from singularity_scheduler.client import ServiceClient
from singularity_spawner.platform.server import Server
from singularity_spawner.proc import read_process
from support.hub_platform import Person, environment_of, error_on, running_platform, uid_of
from support.small_wheels import make_wheel
from support.uids import OWN_UIDS

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def platform():
    # What a server leaves is the subject of test_hibernate.
    async with running_platform(devices=2, spawn_defaults={"hibernate": False}) as running:
        yield running


def user_names():
    """Hub users for a test: as root several, else the one user that a node without root serves."""
    return ("alice", "bob") if OWN_UIDS else ("alice",)


async def server_pid(platform, user):
    model = await platform.hub.server(user)
    return model["state"]["pid"]


async def start_kernel(platform, user, url):
    """Start a kernel over the server's REST API; (the server's token session, kernel id)."""
    headers = {"Authorization": f"token {await platform.user_token(user)}"}
    answer = await asyncio.to_thread(
        requests.post,
        f"{url}api/kernels",
        json={"name": "singularity"},
        headers=headers,
        timeout=60,
    )
    assert answer.status_code == 201, answer.text
    return headers, answer.json()["id"]


async def active(platform, user):
    return [s for s in await platform.service().sessions("active") if s["user"] == user]


async def test_login_form_and_start(platform):
    with Person(platform.url, "alice", "wrong password") as person:
        assert not await asyncio.to_thread(person.login)
    with Person(platform.url, "alice", platform.password) as person:
        assert await asyncio.to_thread(person.login)
        page = await asyncio.to_thread(person.spawn_page)
        assert "2 of 2 cpu devices free now." in page
        for fields, says in [
            ({"tier": "gold", "devices": "1"}, "Unknown tier"),
            ({"tier": "basic", "devices": "0"}, "at least 1 device"),
            ({"tier": "basic", "devices": "-1"}, "at least 1 device"),
            ({"tier": "basic", "devices": "1000000"}, "1000000 devices are more than"),
            ({"tier": "basic", "devices": "3"}, "this cluster has 2 devices"),
            ({"tier": "basic", "devices": "two"}, "must be a whole number"),
            ({"tier": "basic", "devices": "1", "x": "y"}, "Unknown server option"),
        ]:
            answer = await asyncio.to_thread(person.submit, **fields)
            assert answer.status_code == 400
            assert says in error_on(answer.text)
            assert await platform.hub.server("alice") is None
        answer = await asyncio.to_thread(person.submit, tier="premium", devices="2")
        assert answer.status_code == 302
        assert "/hub/spawn-pending/alice" in answer.headers["location"]
    async with asyncio.timeout(60):
        while not (await platform.hub.server("alice") or {}).get("ready"):
            await asyncio.sleep(0.1)
    env = environment_of(await server_pid(platform, "alice"))
    assert env["SINGULARITY_TIER"] == "premium"
    assert env["SINGULARITY_DEVICES"] == "2"
    assert env["JUPYTER_DEFAULT_PROVISIONER_NAME"] == "singularity"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    await platform.stop_server("alice")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tier": "gold"}, "Unknown tier 'gold'"),
        ({"tier": 5}, "Unknown tier 5"),
        ({"devices": 0}, "at least 1 device, not 0"),
        ({"devices": -1}, "at least 1 device, not -1"),
        ({"devices": 10**6}, "1000000 devices are more than"),
        ({"devices": 3}, "this cluster has 2 devices"),
        ({"devices": 1.5}, "whole number"),
        ({"devices": "1"}, "whole number"),
        ({"environment": {"LD_PRELOAD": "x"}}, "Unknown server option 'environment'"),
    ],
)
async def test_bad_options_by_rest_start_nothing(platform, options, says):
    with pytest.raises(SingularityError) as caught:
        await platform.start_server("alice", options)
    assert caught.value.fields["status"] == 400
    assert says in caught.value.message
    assert await platform.hub.server("alice") is None


async def test_the_server_is_the_users_own(platform):
    """Own uid, own home, own token: enough for the user's sessions and nothing else."""
    users = user_names()
    urls = {user: await platform.start_server(user, {}) for user in users}
    uids, tokens = set(), {}
    for user in users:
        pid = await server_pid(platform, user)
        env = environment_of(pid)
        home = platform.folder.homes / user
        assert env["HOME"] == str(home)
        assert all(
            env[name].startswith(f"{home}/")
            for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
        )
        found = home.stat()
        assert stat.S_IMODE(found.st_mode) == 0o700
        assert found.st_uid == uid_of(pid)
        assert "--allow-root" not in command_of(pid) or uid_of(pid) == 0
        uids.add(found.st_uid)
        tokens[user] = env["JUPYTERHUB_API_TOKEN"]
        client = ServiceClient(env["SINGULARITY_API_URL"], tokens[user])
        assert await client.sessions() == []
        answer = await asyncio.to_thread(
            requests.get,
            f"{platform.url}hub/api/users",
            headers={"Authorization": f"token {tokens[user]}"},
            timeout=20,
        )
        assert answer.status_code == 403
    assert len(uids) == len(users)
    if OWN_UIDS:
        assert 0 not in uids
        answer = await asyncio.to_thread(
            requests.get,
            f"{urls['alice']}api/status",
            headers={"Authorization": f"token {tokens['bob']}"},
            timeout=20,
        )
        assert answer.status_code in (403, 404), "another user's server"
    for user in users:
        await platform.stop_server(user)


async def test_pip_in_a_terminal_installs_for_its_user_alone(platform):
    url = await platform.start_server("alice", {})
    server = Server(url, await platform.user_token("alice"))
    wheel = make_wheel(platform.folder.homes.parent, "own_numbers", "1.0", "VALUE = 42\n")
    code, shown = await server.command(f"pip install --no-index {wheel}")
    assert (code, "Successfully installed own" in shown) == (0, True), shown
    assert "have no name" not in shown
    if OWN_UIDS:
        assert "alice@" in shown
    code, shown = await server.command("python -c 'import own_numbers as o; print(o.__file__)'")
    assert code == 0, shown
    assert f"{platform.folder.homes}/alice/.local/share/jupyter-singularity/" in shown
    await platform.stop_server("alice")


def command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


async def test_server_kernel_and_choice_survive_a_hub_restart(platform):
    url = await platform.start_server("alice", {"tier": "basic", "devices": 2})
    pid = await server_pid(platform, "alice")
    headers, kernel = await start_kernel(platform, "alice", url)
    (session,) = await active(platform, "alice")
    await platform.restart_hub()
    model = await platform.hub.server("alice")
    assert model["ready"]
    assert model["state"]["pid"] == pid
    assert model["state"]["singularity"] == {"tier": "basic", "devices": 2}
    kernels = await asyncio.to_thread(
        requests.get, f"{url}api/kernels", headers=headers, timeout=20
    )
    assert [k["id"] for k in kernels.json()] == [kernel]
    (after,) = await active(platform, "alice")
    assert after["id"] == session["id"]
    await platform.stop_server("alice")
    process = read_process(pid)
    assert process is None or process.zombie  # not the Hub's child any more: init reaps it
    assert await active(platform, "alice") == []


async def test_stopping_a_server_ends_its_sessions_only(platform):
    first = await platform.start_server("alice", {})
    second = await platform.start_server("alice", {}, name="second")
    await start_kernel(platform, "alice", first)
    await start_kernel(platform, "alice", first)
    await start_kernel(platform, "alice", second)
    assert len(await active(platform, "alice")) == 3
    await platform.stop_server("alice")
    (left,) = await active(platform, "alice")
    ended = [s for s in await platform.service().sessions() if s["id"] != left["id"]]
    assert any("the notebook server of alice was stopped" in s["reason"] for s in ended)
    await platform.stop_server("alice", name="second")
    assert await active(platform, "alice") == []
    tokens = (await platform.hub.call("GET", "users/alice/tokens"))["api_tokens"]
    notes = sorted(token["note"] for token in tokens if token["note"].startswith("Server at"))
    assert notes == ["Server at /user/alice/", "Server at /user/alice/second/"], "none pile up"
