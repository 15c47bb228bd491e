"""The parts of the embedded platform that need no Hub: ports, secrets, folders, processes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
import subprocess
import sys

import psutil
import pytest
from singularity_proxy.capsule.supervisor import RestartPolicy
from singularity_proxy.errors import Conflict, Unavailable, Unsupported
from singularity_spawner.homes import blocked_folder, folder_name, make_home
from singularity_spawner.platform import Platform, ports, processes, tools
from singularity_spawner.platform.platform import refuse_unreachable, take_lock
from singularity_spawner.platform.run import is_awaited
from singularity_spawner.platform.server import Server
from singularity_spawner.platform.settings import MARK, Settings, StateFolder, write_private
from singularity_spawner.proc import read_process
from support.uids import needs_own_uids
from tornado.concurrent import future_set_exception_unless_cancelled
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler


@pytest.mark.asyncio
async def test_a_failure_of_a_request_that_was_given_up_is_no_line_of_up(caplog, request):
    logger = logging.getLogger("tornado.application")
    logger.addFilter(is_awaited)
    request.addfinalizer(lambda: logger.removeFilter(is_awaited))
    given_up = asyncio.get_running_loop().create_future()
    given_up.cancel()
    future_set_exception_unless_cancelled(given_up, ConnectionRefusedError("nobody is there"))
    logger.error("Uncaught exception GET /")
    assert [record.message for record in caplog.records] == ["Uncaught exception GET /"]


class FailingPart:
    """Ends as soon as it is started."""

    name, goes_on, answered = "the scheduler service", "sessions go on", False

    def __init__(self):
        self.starts = 0

    async def start(self):
        self.starts += 1

    async def ended(self):
        return "ended by itself with exit code 1"


@pytest.mark.asyncio
async def test_a_service_that_ends_at_each_start_is_brought_back_once(tmp_path):
    """When `up` stops for it, nobody waits for as long as notebooks may take to be stored."""
    policy = RestartPolicy(limit=3, first_pause_s=0.0)
    platform = Platform(tmp_path / "state", restarts=policy, tell=lambda line: None)
    part = platform._service_part = FailingPart()
    platform._keep(part)
    async with asyncio.timeout(10):
        why = await platform.failed()
        given_up_at = part.starts
        await platform.revive_service()
        await platform.revive_service()  # it is kept running: nothing to do
        assert part.starts == given_up_at + 1
        await platform.failed()
        starts = part.starts
        with pytest.raises(Unavailable) as caught:
            await platform.revive_service()
    assert caught.value.message == why
    assert "ended by itself with exit code 1, after it was started again 3 times" in why
    assert part.starts == starts


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def folder(tmp_path):
    made = StateFolder(tmp_path / "state")
    made.create()
    return made


def settings(folder, **changes):
    values = {
        "state_dir": str(folder.path),
        "port": 8000,
        "hub_port": 1,
        "proxy_api_port": 2,
        "service_port": 3,
        "devices": 2,
        "proxy_command": ["chp"],
        "path": "/bin",
    }
    return Settings(**{**values, **changes})


# -- state folder ---------------------------------------------------------------------------------


def test_only_homes_can_be_reached_by_others(folder):
    folder.create()
    assert mode(folder.path) == mode(folder.homes) == 0o711
    assert mode(folder.scheduler) == 0o700
    assert {mode(p) for p in (folder.hub_db, folder.hub_log, folder.lock)} == {0o600}


def test_a_secret_is_made_once_and_kept_private(folder):
    first = folder.secret("password", 16)
    assert len(first) == 16
    assert folder.secret("password", 16) == first
    assert folder.secret("other", 16) != first
    (folder.path / "password").chmod(0o644)
    assert folder.secret("password", 16) == first
    assert mode(folder.path / "password") == 0o600


def test_settings_come_back_as_they_were(folder):
    assert Settings.load(folder) is None
    saved = settings(folder, spawn_defaults={"default_tier": "basic"})
    saved.save()
    assert Settings.load(folder) == saved
    assert mode(folder.settings) == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": 1}', '{"unknown": 1}'])
def test_unreadable_settings_are_none(folder, text):
    write_private(folder.settings, text)
    assert Settings.load(folder) is None


def test_a_state_folder_belongs_to_one_run(folder):
    settings(folder, port=8123).save()
    held = take_lock(folder)
    try:
        with pytest.raises(Conflict, match=r"already runs at http://127\.0\.0\.1:8123/ with"):
            take_lock(folder)
    finally:
        os.close(held)
    os.close(take_lock(folder))


@pytest.mark.root
@needs_own_uids
def test_a_state_folder_closed_to_the_users_uids_is_refused(tmp_path):
    tmp_path.chmod(0o700)
    made = StateFolder(tmp_path / "state")
    made.create()
    with pytest.raises(Conflict, match="cannot be passed by other uids; nothing was started"):
        refuse_unreachable(made)


# -- ports ----------------------------------------------------------------------------------------


def test_a_taken_port_is_refused_and_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not ports.is_free(port)
        with pytest.raises(Conflict, match=f"Port {port} on 127.0.0.1 is taken"):
            ports.public_port(port)
    assert ports.public_port(port) == port


@pytest.mark.parametrize("port", [0, -1, 65536, 10**6])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(Conflict, match="no port number"):
        ports.public_port(port)


def test_free_ports_differ():
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert all(ports.is_free(port) for port in found)


# -- homes ----------------------------------------------------------------------------------------


def test_names_of_home_folders_are_safe_and_differ():
    users = [
        "alice",
        "Alice",
        "a b",
        "a/b",
        "..",
        ".",
        "",
        "../etc",
        "ü",
        "%",
        "%25",
        "a\0b",
        "a@b.c",
    ]
    names = [folder_name(user) for user in users]
    assert len(set(names)) == len(users)
    assert folder_name("alice") == "alice"
    assert folder_name("a@b.c") == "a@b.c"
    for name in names:
        assert "/" not in name
        assert "\0" not in name
        assert not name.startswith(".")
        assert name


def test_a_home_is_made_once_and_private(tmp_path):
    home = make_home(tmp_path / "homes", "alice", os.geteuid(), os.getegid())
    assert mode(home) == 0o700
    assert make_home(tmp_path / "homes", "alice", os.geteuid(), os.getegid()) == home


@pytest.mark.root
def test_a_home_belongs_to_its_uid(tmp_path):
    home = make_home(tmp_path, "alice", 1900000005, 1900000005)
    assert home.stat().st_uid == 1900000005
    with pytest.raises(PermissionError, match="belongs to uid 1900000005 and not to alice's uid"):
        make_home(tmp_path, "alice", 1900000006, 1900000006)


def test_a_link_in_the_place_of_a_home_is_refused(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "alice").symlink_to(tmp_path / "target")
    with pytest.raises(PermissionError):
        make_home(tmp_path, "alice", os.geteuid(), os.getegid())


def test_the_folder_that_blocks_other_users_is_named(tmp_path):
    below = tmp_path / "closed" / "homes"
    below.mkdir(parents=True)
    tmp_path.chmod(0o711)
    (tmp_path / "closed").chmod(0o700)
    assert blocked_folder(below) in (tmp_path / "closed", *tmp_path.parents)


# -- processes ------------------------------------------------------------------------------------


def test_processes_of_a_run_are_found_by_mark_and_through_parents():
    """Also a child that dropped the environment."""
    script = (
        "import subprocess, sys, time;"
        "p = subprocess.Popen(['sleep', '60'], env={}); print(p.pid, flush=True); p.wait()"
    )
    run = os.urandom(8).hex()
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, MARK: run},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        child = int(parent.stdout.readline())
        found = processes.of_run(run)
        assert {process.pid for process in found} == {parent.pid, child}
        assert not processes.of_run("0" * 16)
        processes.send(found, 9)
        parent.wait()
    assert not processes.of_run("")


def test_what_an_agent_started_is_the_agents_to_end():
    """The agent is told by its module in the arguments; here a stand-in with such an argument."""
    script = (
        "import subprocess; p = subprocess.Popen(['sleep', '60']);"
        "print(p.pid, flush=True); p.wait()"
    )
    run = os.urandom(8).hex()
    with subprocess.Popen(
        [sys.executable, "-c", script, "singularity_scheduler.agent"],
        env={**os.environ, MARK: run},
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        child = int(agent.stdout.readline())
        found = processes.of_run(run)
        assert [{p.pid for p in group} for group in processes.agents_of(found)] == [
            {agent.pid},
            {child},
        ]
        processes.send(found, 9)


@pytest.mark.asyncio
async def test_a_run_is_ended_also_when_it_ignores_sigterm():
    script = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    )
    run = os.urandom(8).hex()
    stubborn = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        env={**os.environ, MARK: run},
        stdout=asyncio.subprocess.PIPE,
    )
    await stubborn.stdout.readline()
    assert await processes.end_run(run, 0.2) == set()
    assert await stubborn.wait() == -9


def test_a_later_process_with_the_same_pid_is_not_signalled():
    me = read_process(os.getpid())
    earlier = processes.Process(me.pid, me.started - 1, me.parent, False)
    processes.send([earlier], 9)
    assert read_process(2**22 + 1) is None


# -- tools ----------------------------------------------------------------------------------------


def test_a_missing_proxy_says_how_to_get_it(monkeypatch, tmp_path):
    with pytest.raises(Unsupported, match="npm install -g configurable-http-proxy"):
        tools.proxy_command(str(tmp_path))
    monkeypatch.setenv(tools.PROXY_VARIABLE, "/no/such/program")
    with pytest.raises(Unsupported, match="/no/such/program was not found"):
        tools.proxy_command(os.environ["PATH"])


def test_node_comes_before_everything_else(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    path = tools.search_path().split(":")
    assert path[-2:] == ["/usr/bin", "/bin"]
    assert len(path) == len(set(path))
    if tools.node_folder():
        assert path[0] == tools.node_folder()


# -- a user's server ------------------------------------------------------------------------------


class Terminals(RequestHandler):
    def post(self):
        self.write({"name": "1"})

    def delete(self, name):
        self.set_status(204)


class Terminal(WebSocketHandler):
    """Shows more than is asked for, as a shell does that prompts again."""

    async def on_message(self, message):
        for text in ("ended with 3.", "$ ", "$ ", "$ "):
            await self.write_message(json.dumps(["stdout", text]))


@pytest.mark.asyncio
async def test_a_command_in_a_terminal_lets_its_connection_go():
    """A loop that ends soon after would keep the socket."""
    handlers = [(r"/api/terminals", Terminals), (r"/api/terminals/(.*)", Terminals)]
    here = HTTPServer(Application([*handlers, (r"/terminals/websocket/1", Terminal)]))
    sockets = bind_sockets(0, "127.0.0.1")
    here.add_sockets(sockets)
    port = sockets[0].getsockname()[1]
    try:
        assert await Server(f"http://127.0.0.1:{port}/", "token").command("x") == (3, "")
        found = psutil.Process().net_connections("tcp")
        assert [c for c in found if c.raddr and c.raddr.port == port] == []
    finally:
        here.stop()
        await here.close_all_connections()
