"""What a browser gets from a real Jupyter server: kernels as sessions, and the relayed API."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from singularity_proxy.errors import BadRequest, Unavailable
from support.kernel_relay import wait_until
from support.kernel_server import TOKEN, Server, server
from support.kernel_service import Scheduler, scheduler
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

API = "singularity/api/v1/"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Scheduler]]:
    import tempfile

    with (
        tempfile.TemporaryDirectory(prefix="srv") as folder,
        scheduler(Path(folder)) as platform,
        server(
            tmp_path_factory.mktemp("server"),
            "--SingularityLabExtension.emit_events=False",  # so that browsers alone listen
            **platform.environment,
            JUPYTER_DEFAULT_PROVISIONER_NAME="singularity",
        ) as running,
    ):
        yield running, platform


@pytest.fixture
def platform(both: tuple[Server, Scheduler]) -> Iterator[Scheduler]:
    yield both[1]
    both[1].refusal = None
    both[1].events.clear()


@pytest.fixture
def jupyter(both: tuple[Server, Scheduler], platform: Scheduler) -> Server:
    return both[0]


@pytest.mark.parametrize("name", ["singularity", "python3"])
def test_a_kernel_of_the_server_is_a_session(
    jupyter: Server, platform: Scheduler, name: str
) -> None:
    before = len(platform.sessions)
    started = jupyter.ask("api/kernels", "POST", {"name": name})
    assert started.status == 201
    (session,) = platform.sessions[before:]
    assert session.launch["owner_pid"] == jupyter.process.pid
    kernel = f"api/kernels/{started.body['id']}"
    assert jupyter.ask(f"{kernel}/restart", "POST", {}).status == 200
    assert len(platform.sessions) == before + 2
    assert session.look()["process_state"] != "live"
    assert jupyter.ask(kernel, "DELETE").status == 204
    assert all(s.look()["process_state"] != "live" for s in platform.sessions)


async def _run_in(socket: WebSocketClientConnection, code: str) -> str:
    """Run a cell over a kernel's websocket; what it printed."""
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "ada"}
    header |= {"session": "page", "version": "5.3", "date": "2026-01-01T00:00:00Z"}
    content = {"code": code, "silent": False, "store_history": False}
    asked = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}}
    await socket.write_message(json.dumps({**asked, "content": content, "buffers": []}))
    text = ""
    while True:
        answer = await asyncio.wait_for(socket.read_message(), 30)
        assert answer is not None, "the server closed the websocket"
        message = json.loads(answer)
        if message["parent_header"].get("msg_id") != header["msg_id"]:
            continue
        text += message["content"].get("text", "")
        if message["content"].get("execution_state") == "idle":
            return text


NOTES_ITS_END = """
_own = get_ipython().kernel
_ends = _own.do_shutdown
async def _note(restart):
    open({path!r}, "w").write(f"asked, {{restart=}}")
    return await _ends(restart)
_own.do_shutdown = _note
print("notes")
"""
"""A cell upon which a kernel writes into the file `path` that it was asked to end. How its process
ends does not say so: ipykernel 7 can hang when it exits, and is killed after a while."""


async def _closed(socket: WebSocketClientConnection) -> None:
    while await asyncio.wait_for(socket.read_message(), 30) is not None:
        pass
    socket.close()


def test_a_page_goes_on_when_the_kernel_is_reached_elsewhere(
    jupyter: Server, platform: Scheduler, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    started = jupyter.ask("api/kernels", "POST", {"name": "singularity"})
    session = platform.sessions[-1]
    where = f"{jupyter.url.replace('http', 'ws')}api/kernels/{started.body['id']}/channels"
    request = HTTPRequest(f"{where}?session_id=page", headers={"Authorization": f"token {TOKEN}"})

    async def page() -> None:
        first = await websocket_connect(request)
        assert await _run_in(first, "x = 'kept'; print(x)") == "kept\n"
        page = first
        for local in (False, True, True):  # from sockets to ports with keys, back, and elsewhere
            session.local = local
            session.lose_relay()
            await _closed(page)
            assert page.close_code == 1012  # upon which a browser connects again
            page = await websocket_connect(request)
            assert await _run_in(page, "print(x)") == "kept\n"
        assert await _run_in(page, NOTES_ITS_END.format(path=str(asked))) == "notes\n"
        page.close()
        await _closed(page)

    asyncio.run(page())
    state = jupyter.ask(f"api/kernels/{started.body['id']}").body
    assert state["execution_state"] == "idle"
    assert jupyter.ask(f"api/kernels/{started.body['id']}", "DELETE").status == 204
    assert session.look()["process_state"] != "live"
    assert asked.exists(), "it was not asked to end at its new place"
    assert asked.read_text() == "asked, restart=False"


def test_a_kernel_is_used_by_its_connection_file(
    jupyter: Server, platform: Scheduler, tmp_path: Path
) -> None:
    """As that of a fork is, which no server has started."""
    started = jupyter.ask("api/kernels", "POST", {"name": "singularity"})
    connection = platform.sessions[-1].launch["connection"]
    external = tmp_path / "external"
    external.mkdir()
    named = {**connection, "kernel_name": ""}  # as the agent writes it
    (external / "train-b.json").write_text(json.dumps(named))
    own = {"JUPYTER_TOKEN": TOKEN, "SINGULARITY_API_URL": ""}
    options = ["--ServerApp.allow_external_kernels=True"]
    options += [f"--ServerApp.external_connection_dir={external}"]
    folder = tmp_path / "server"
    folder.mkdir()
    with server(folder, *options, **own) as other:
        [found] = other.ask("api/kernels").body
        where = f"{other.url.replace('http', 'ws')}api/kernels/{found['id']}/channels"
        token = {"Authorization": f"token {TOKEN}"}

        async def page() -> None:
            socket = await websocket_connect(HTTPRequest(f"{where}?session_id=b", headers=token))
            assert await _run_in(socket, "print('reached')") == "reached\n"
            socket.close()
            await _closed(socket)

        asyncio.run(page())
    assert jupyter.ask(f"api/kernels/{started.body['id']}", "DELETE").status == 204


def test_a_refusal_reaches_the_dialog_as_its_sentence(jupyter: Server, platform: Scheduler) -> None:
    platform.refusal = BadRequest("there are 2 devices, not 9: choose fewer in the spawn form")
    answer = jupyter.ask("api/kernels", "POST", {"name": "singularity"})
    assert answer.status == 400
    assert answer.body["message"] == platform.refusal.message
    assert not answer.body.get("traceback")
    assert platform.refusal.message in jupyter.log
    assert "Traceback" not in jupyter.log


def test_sessions_and_cluster_are_relayed(jupyter: Server, platform: Scheduler) -> None:
    started = jupyter.ask("api/kernels", "POST", {"name": "singularity"})
    sid = platform.sessions[-1].json["id"]
    found = jupyter.ask(API + "sessions?state=active").body["sessions"]
    assert sid in [s["id"] for s in found]
    assert jupyter.ask(API + "sessions?state=no-such-state").body == {"sessions": []}
    assert jupyter.ask(API + f"sessions/{sid}").body["id"] == sid
    assert jupyter.ask(API + f"sessions/{sid}/why").body["sentence"] == "because"
    history = API + f"sessions/{sid}/history?limit=7"
    assert jupyter.ask(history).body == {"history": [7], "next": "older"}
    assert jupyter.ask(f"{history}&cursor=older").body == {"history": [7], "next": None}
    assert jupyter.ask(API + f"sessions/{sid}/checkpoints").body == {"checkpoints": [{"id": "c1"}]}
    assert jupyter.ask(API + f"sessions/{sid}/devices").body == {"session": sid, "devices": []}
    assert jupyter.ask(API + "cluster").body == {"devices": [], "waiting": {}}
    assert jupyter.ask(API + "planned").body == {"planned": {}, "again_s": None}
    assert jupyter.ask(API + "users/ada/tiers").body == {"tiers": ["premium", "basic"]}
    assert jupyter.ask(API + "users/ada%2Fl/tiers").body == {"tiers": ["basic"]}
    jupyter.ask(f"api/kernels/{started.body['id']}", "DELETE")


def test_refusals_keep_status_and_sentence(jupyter: Server) -> None:
    answer = jupyter.ask(API + "sessions/0123456789ab")
    assert answer.status == 404
    assert answer.body["reason"] == "not_found"
    assert "0123456789ab" in answer.body["message"]
    assert jupyter.ask(API + "sessions/x/history?limit=many").status == 400


def test_verbs_are_relayed_with_their_words(jupyter: Server, platform: Scheduler) -> None:
    started = jupyter.ask("api/kernels", "POST", {"name": "singularity"})
    session = platform.sessions[-1]
    path = f"{API}sessions/{session.json['id']}"
    assert jupyter.ask(API + "kernels").body == {
        "kernels": {started.body["id"]: session.json["id"]}
    }
    for verb, body in (
        ("checkpoint", {"name": "before lr"}),
        ("suspend", None),
        ("resume", {}),
        ("migrate", {"node": "b"}),
        ("resize", {"devices": 2}),
        ("park", {}),
        ("keep", {"for_s": 0}),
        ("tier", {"tier": "basic"}),
        ("restore", {"checkpoint": "before lr"}),
        ("fork", {"checkpoint": "before lr", "name": "try"}),
        ("priority", {"priority": "high"}),
    ):
        answer = jupyter.ask(f"{path}/{verb}", "POST", body)
        assert (answer.status, answer.body["id"]) == (200, session.json["id"])
    assert session.asked == [
        ("checkpoint", {"name": "before lr"}),
        ("suspend", {}),
        ("resume", {}),
        ("migrate", {"node": "b"}),
        ("resize", {"devices": 2}),
        ("park", {}),
        ("keep", {"for_s": 0}),
        ("tier", {"tier": "basic"}),
        ("restore", {"checkpoint": "before lr"}),
        ("fork", {"checkpoint": "before lr", "name": "try"}),
        ("priority", {"priority": "high"}),
    ]
    refused = jupyter.ask(f"{path}/checkpoint", "POST", {"colour": "red"})
    assert (refused.status, len(session.asked)) == (400, 11)
    assert "name and level" in refused.body["message"]
    refused = jupyter.ask(f"{path}/restore", "POST", {})
    assert (refused.status, len(session.asked)) == (400, 11)
    assert refused.body["message"] == "restore needs checkpoint: nothing was done"
    needs = {"keep": "for_s", "tier": "tier", "priority": "priority", "resize": "devices"}
    for verb, needed in needs.items():
        refused = jupyter.ask(f"{path}/{verb}", "POST", {})
        assert refused.body["message"] == f"{verb} needs {needed}: nothing was done"
    platform.refusal = BadRequest("its node cannot store processes: it has no CRIU")
    answer = jupyter.ask(f"{path}/suspend", "POST", {})
    assert (answer.status, answer.body["message"]) == (400, platform.refusal.message)
    platform.refusal = None
    assert jupyter.ask(f"{path}/why", "DELETE").status == 405
    assert jupyter.ask(path, "DELETE").status == 200
    assert session.ends[-1]["reason"] == "ended in JupyterLab"
    jupyter.ask(f"api/kernels/{started.body['id']}", "DELETE")


def test_the_output_of_a_run_is_found_below_the_servers_root(
    jupyter: Server, platform: Scheduler, tmp_path: Path
) -> None:
    started = jupyter.ask("api/kernels", "POST", {"name": "singularity"})
    session = platform.sessions[-1]
    path = f"{API}sessions/{session.json['id']}/output"
    assert jupyter.ask(path).body == {"file": None, "path": None, "exists": False}
    root = jupyter.log_path.parent.resolve()
    session.json["run"] = {"output": str(root / "runs/out.ipynb")}
    found = {"file": str(root / "runs/out.ipynb"), "path": "runs/out.ipynb", "exists": False}
    assert jupyter.ask(path).body == found
    (root / "runs").mkdir()
    (root / "runs/out.ipynb").write_text("{}")
    assert jupyter.ask(path).body == {**found, "exists": True}
    session.json["run"] = {"output": str(tmp_path / "out.ipynb")}
    elsewhere = {"file": str(tmp_path / "out.ipynb"), "path": None, "exists": False}
    assert jupyter.ask(path).body == elsewhere
    jupyter.ask(f"api/kernels/{started.body['id']}", "DELETE")


def test_a_log_is_relayed_from_its_end_on_until_it_is_over(
    jupyter: Server, platform: Scheduler
) -> None:
    started = jupyter.ask("api/kernels", "POST", {"name": "singularity"})
    path = f"{API}sessions/{platform.sessions[-1].json['id']}/log"
    platform.log += b"one\ntwo\n"
    with jupyter.open(path) as stream:
        assert _event(stream) == ("log", {"text": "one\ntwo\n", "next": 8})
        assert _event(stream) == ("end", {})
        assert stream.read() == b""
    with jupyter.open(f"{path}?tail=4&follow=true") as stream:
        assert _event(stream) == ("log", {"text": "two\n", "next": 8})
        platform.log += b"three\n"
        assert _event(stream) == ("log", {"text": "three\n", "next": 14})
        platform.log_over = True
        assert _event(stream) == ("end", {})
    with jupyter.open(f"{path}?offset=14") as stream:
        assert _event(stream) == ("end", {})
    assert jupyter.ask(f"{path}?offset=-1").status == 400
    platform.refusal = BadRequest("its output went to that terminal")
    refused = jupyter.ask(path)
    assert (refused.status, refused.body["message"]) == (400, platform.refusal.message)
    platform.refusal = None
    jupyter.ask(f"api/kernels/{started.body['id']}", "DELETE")


METHODS = ("get", "post", "put", "patch", "delete", "head")


def every_request() -> list[tuple[str, str]]:
    """(method, path) of all that the handlers define."""
    from singularity_labext.handlers import handlers
    from tornado.web import RequestHandler

    return [
        (method.upper(), rest_of(route, part))
        for route, handler in handlers()
        for part in ("", "why", "checkpoint", "log")
        for method in METHODS
        if getattr(handler, method) is not getattr(RequestHandler, method)
        and re.fullmatch(route, "/" + rest_of(route, part))
    ]


def rest_of(route: str, part: str) -> str:
    """A path that a route matches, without the leading slash."""
    if "/users/" in route:
        return API + "users/x/tiers"
    return (API + "sessions/x" + (f"/{part}" if part else "")) if "(" in route else route[1:]


def test_every_handler_refuses_strangers(jupyter: Server, platform: Scheduler) -> None:
    requests = set(every_request())
    assert ("GET", API + "users/x/tiers") in requests
    assert {("DELETE", API + "sessions/x"), ("POST", API + "sessions/x/checkpoint")} <= requests
    assert len({path for _, path in requests}) >= 7
    for method, path in sorted(requests):
        for token in (None, "wrong"):
            assert jupyter.ask(path, method, token=token).status == 403, (method, path)
    assert platform.listeners == 0


def test_every_method_of_the_handlers_is_authenticated_and_authorized() -> None:
    """What the next handler must have too, wherever it is routed."""
    import ast
    import inspect

    import singularity_labext.handlers as module

    functions = [
        function
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef)
        for function in node.body
        if isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef) and function.name in METHODS
    ]
    assert len(functions) >= 7
    for function in functions:
        names = [ast.unparse(decorator) for decorator in function.decorator_list]
        assert names == ["web.authenticated", "authorized"], function.lineno


def _event(stream: object) -> tuple[str, object]:
    name, data = "", None
    while line := stream.readline().decode().rstrip("\n"):  # type: ignore[attr-defined]
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data = json.loads(line[5:])
    return name, data


def test_events_are_relayed_until_the_browser_leaves(jupyter: Server, platform: Scheduler) -> None:
    platform.events.append(("snapshot", {"sessions": []}))
    with jupyter.open(API + "events") as stream:
        assert _event(stream) == ("snapshot", {"sessions": []})
        platform.events.append(("session", {"id": "a", "state": "parked"}))
        assert _event(stream) == ("session", {"id": "a", "state": "parked"})
        assert stream.headers["Content-Type"] == "text/event-stream"  # type: ignore[attr-defined]
        assert platform.listeners == 1
    wait_until(lambda: platform.listeners == 0, why="the scheduler's stream stayed open")


def test_a_browser_that_comes_back_reads_what_it_missed(
    jupyter: Server, platform: Scheduler
) -> None:
    platform.events += [("snapshot", {"sessions": []}), ("session", {"id": "a"})]
    with jupyter.open(API + "events") as stream:
        assert stream.readline() == b"id: fake-1\n"
    platform.events.append(("session", {"id": "b"}))
    with jupyter.open(API + "events", headers={"Last-Event-ID": "fake-2"}) as stream:
        assert stream.readline() == b"id: fake-3\n"
        assert _event(stream) == ("session", {"id": "b"})
    wait_until(lambda: platform.listeners == 0, why="the scheduler's stream stayed open")


SHORT_HEARTBEATS = """
import singularity_labext.handlers

def _jupyter_server_extension_points():
    return [{"module": "short_heartbeats"}]

def _load_jupyter_server_extension(serverapp):
    singularity_labext.handlers.HEARTBEAT_S = 0.2
"""


def test_the_place_of_heartbeats_is_passed_on(tmp_path: Path) -> None:
    import tempfile

    (tmp_path / "short_heartbeats.py").write_text(SHORT_HEARTBEATS)
    with (
        tempfile.TemporaryDirectory(prefix="srv") as folder,
        scheduler(Path(folder)) as platform,
        server(
            tmp_path,
            "--SingularityLabExtension.emit_events=False",
            "--ServerApp.jpserver_extensions={'singularity_labext': True, "
            "'short_heartbeats': True}",
            **platform.environment,
            PYTHONPATH=str(tmp_path),
        ) as running,
    ):
        platform.events.append(("snapshot", {"sessions": []}))
        with running.open(API + "events") as stream:
            assert _event(stream) == ("snapshot", {"sessions": []})
            platform.events.append(("", None))
            while (line := stream.readline()) != b"id: fake-2\n":
                assert line in (b": still here\n", b"id: fake-1\n", b"\n")
            assert stream.readline() == b"\n"


SESSION = {
    "id": "a",
    "user": "alice",
    "name": "train.ipynb",
    "kind": "interactive",
    "tier": "basic",
    "node": "local",
    "state": "ready",
    "process_state": "live",
    "device_state": "none",
    "reason": "its process runs",
    "updated_at": "2026-01-01T00:00:00.000+00:00",
}
PRINT_EVENTS = """
import json
from singularity_scheduler.client.schemas import SESSION_STATE

async def tell(logger, schema_id, data):
    print("EVENT", json.dumps(data), flush=True)

def _jupyter_server_extension_points():
    return [{"module": "print_events"}]

def _load_jupyter_server_extension(serverapp):
    serverapp.event_logger.add_listener(schema_id=SESSION_STATE, listener=tell)
"""


def test_changes_of_sessions_are_events_of_the_server(tmp_path: Path) -> None:
    import tempfile

    (tmp_path / "print_events.py").write_text(PRINT_EVENTS)
    with (
        tempfile.TemporaryDirectory(prefix="srv") as folder,
        scheduler(Path(folder)) as platform,
        server(
            tmp_path,
            "--ServerApp.jpserver_extensions={'singularity_labext': True, 'print_events': True}",
            **platform.environment,
            PYTHONPATH=str(tmp_path),
        ) as running,
    ):
        running_now = {**SESSION, "state": "running", "device_state": "held"}
        platform.events += [
            ("snapshot", {"sessions": [SESSION]}),
            ("session", {**SESSION, "busy": True}),  # not another state
            ("session", running_now),
            ("queue", {"places": {"a": 1}}),
            ("session", {**running_now, "reason": "holds cpu:0"}),
        ]

        def told() -> list[dict[str, str]]:
            lines = [x for x in running.log.splitlines() if x.startswith("EVENT ")]
            return [json.loads(line.removeprefix("EVENT ")) for line in lines]

        wait_until(lambda: len(told()) >= 2, why="no events")
        assert [(e["session"], e["state"], e["reason"]) for e in told()] == [
            ("a", "running", "its process runs"),
            ("a", "running", "holds cpu:0"),
        ]


def test_a_refused_event_stream_is_an_error_document(jupyter: Server, platform: Scheduler) -> None:
    platform.refusal = Unavailable("the scheduler starts up; try again in a moment")
    answer = jupyter.ask(API + "events")
    assert answer.status == 503
    assert answer.body["message"] == platform.refusal.message


def test_a_scheduler_that_goes_away_is_told_and_ends_the_stream(
    jupyter: Server, platform: Scheduler
) -> None:
    platform.events.append(("snapshot", {"sessions": []}))
    try:
        with jupyter.open(API + "events") as stream:
            _event(stream)
            platform.stop()
            name, data = _event(stream)
            assert name == "away"
            assert "event stream ended" in str(data)
            assert stream.read() == b""
        answer = jupyter.ask(API + "sessions")
        assert answer.status == 503
        assert "does not answer" in answer.body["message"]
    finally:
        platform.start()


def test_what_stops_servers_and_kernels_is_told_before(platform: Scheduler, tmp_path: Path) -> None:
    until = time.time() + 600
    options = ("cull_idle_timeout=7200", "cull_connected=True")
    with server(
        tmp_path,
        *(f"--MappingKernelManager.{option}" for option in options),
        **platform.environment,
        JUPYTER_DEFAULT_PROVISIONER_NAME="singularity",
        SINGULARITY_SERVER_UNTIL=str(until),
    ) as running:
        kernel = running.ask("api/kernels", "POST", {"name": "singularity"}).body["id"]
        told = running.ask(API + "planned").body
        assert told["again_s"] == 30
        plan = told["planned"][kernel]
        assert (plan["what"], plan["rule"]) == ("end", "server.age"), "this one does not hibernate"
        assert abs(datetime.fromisoformat(plan["at"]).timestamp() - until) < 0.01
        running.ask(f"api/kernels/{kernel}", "DELETE")
        assert running.ask(API + "planned").body["planned"] == {}


def test_without_a_platform_every_request_says_so(tmp_path: Path) -> None:
    with server(tmp_path) as alone:
        for path in ("sessions", "cluster", "events"):
            answer = alone.ask(API + path)
            assert answer.status == 503
            assert "SINGULARITY_API_URL" in answer.body["message"]
        assert alone.ask("api/kernels", "POST", {"name": "singularity"}).status == 201
        assert "without an accelerator" in alone.log
        assert "Traceback" not in alone.log
