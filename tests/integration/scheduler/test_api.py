"""What all operations have in common: pages, keys, unknown words, sizes, methods, metrics, logs."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from singularity_proxy.errors import BadRequest, Conflict, NotFound, TooLarge
from singularity_scheduler import logs
from singularity_scheduler.client.schemas import SCHEMAS
from singularity_scheduler.core.values.requested import Kind, Tier
from singularity_scheduler.core.values.rules import RULES
from singularity_scheduler.core.values.states import WORDS, DeviceState, ProcessState
from singularity_scheduler.service.api.endpoint import MAX_BODY_BYTES, MAX_DISCARD_BYTES
from singularity_scheduler.service.api.metrics import STATUS_CLASSES, verbs
from singularity_scheduler.service.api.problems import OUTCOMES
from singularity_scheduler.service.operations.handlers import TABLE, by_path
from singularity_scheduler.service.schemas.openapi import document
from support.scheduler_service import LAUNCH, Platform, platform, until
from tornado.httpclient import AsyncHTTPClient, HTTPResponse

RUN = {"notebook": "/home/alice/train.ipynb"}


async def ask(
    p: Platform,
    method: str,
    path: str,
    body: Any = None,
    who: str = "alice",
    **headers: str,
) -> HTTPResponse:
    """One request below the service's address, as bytes go over the wire."""
    given = {"Authorization": f"token {who}-token"} if who else {}
    return await AsyncHTTPClient().fetch(
        f"{p.url}{path}",
        method=method,
        body=body if isinstance(body, bytes | None) else json.dumps(body),
        headers={**given, **{k.replace("_", "-"): v for k, v in headers.items()}},
        raise_error=False,
        allow_nonstandard_methods=True,
    )


@pytest.mark.asyncio
async def test_pages_hold_every_session_once_whatever_happens_meanwhile(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        made = [await p.kernel(name=str(n)) for n in range(7)]
        client, found, cursor = p.client(), [], None
        while True:
            page = await client.sessions_page(limit=3, cursor=cursor)
            found += [s["id"] for s in page["sessions"]]
            await p.kernel(name="newer")  # must not push anything onto another page
            if not (cursor := page["next"]):
                break
        assert found == made[::-1]
        answer = await ask(p, "GET", "api/v1/sessions?limit=2&kind=interactive")
        link = answer.headers["Link"]
        assert link.startswith("</services/singularity/api/v1/sessions?limit=2&kind=interactive&")
        assert link.endswith('>; rel="next"')
        following = link[1:].split(">")[0].removeprefix("/services/singularity/")
        second = json.loads((await ask(p, "GET", following)).body)
        first = json.loads(answer.body)
        assert not {s["id"] for s in first["sessions"]} & {s["id"] for s in second["sessions"]}


@pytest.mark.asyncio
async def test_filters(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        kernel = await p.kernel("alice", name="k")
        run = await p.client("bob").submit(run=RUN, name="r")
        await p.client().end_session(kernel)
        admin = p.client("admin")

        async def ids(**filters: Any) -> list[str]:
            return [s["id"] for s in (await admin.sessions_page(**filters))["sessions"]]

        assert await ids() == [run["id"], kernel]
        assert await ids(kind="batch") == await ids(user="bob") == await ids(state="active")
        assert await ids(state="active") == [run["id"]]
        assert await ids(state="completed") == [kernel]
        assert (await p.client("alice").sessions_page(user="bob"))["sessions"] == []


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("limit=0", "limit must be a whole number from 1 to 1000"),
        ("limit=1e3", "limit must be a whole number from 1 to 1000"),
        ("limit=1&limit=2", "limit came 2 times, it must come once"),
        ("limt=5", "'limt' is not known; did you mean 'limit'?"),
        ("state=sleeping", "state must be one of active, queued"),
        ("kind=x", "kind must be one of interactive, batch"),
        ("cursor=abc", "cursor is not one that this list gave"),
        ("cursor=WzEsMl0", "cursor is not one that this list gave"),
        ("user=%FF", "user is not UTF-8 text"),
        ("user=", "user must be text"),
    ],
)
@pytest.mark.asyncio
async def test_queries_that_cannot_be(tmp_path: Path, query: str, sentence: str) -> None:
    async with platform(tmp_path) as p:
        answer = await ask(p, "GET", f"api/v1/sessions?{query}")
        assert answer.code == 400
        assert sentence in json.loads(answer.body)["detail"]


@pytest.mark.asyncio
async def test_a_cursor_of_another_list_is_refused(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        for _ in range(3):
            session = await p.kernel()
        cursor = (await p.client().sessions_page(limit=1))["next"]
        for other in (
            p.client("admin").sessions_page(cursor=cursor),
            p.client().sessions_page(cursor=cursor, state="active"),
        ):
            with pytest.raises(BadRequest, match="begin without it"):
                await other
        answer = await ask(p, "GET", f"api/v1/sessions/{session}/history?cursor={cursor}")
        assert answer.code == 400


@pytest.mark.asyncio
async def test_history_in_pages(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await p.holder()
        whole = await p.client().history(session)
        assert len(whole) >= 5
        path, found = f"api/v1/sessions/{session}/history?limit=2", []
        answer = json.loads((await ask(p, "GET", path)).body)
        while True:
            found = answer["history"] + found
            if not answer["next"]:
                break
            answer = json.loads((await ask(p, "GET", f"{path}&cursor={answer['next']}")).body)
        assert found == whole


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"launch": LAUNCH, "teir": "basic"}, "'teir' is not known; did you mean 'tier'?"),
        ({"launch": {**LAUNCH, "evn": {}}}, "'launch.evn' is not known; did you mean 'env'?"),
        ({"run": {**RUN, "notebok": "x"}}, "'run.notebok' is not known; did you mean 'notebook'?"),
        ({"run": {}}, "run.notebook is missing"),
        ({"run": {"notebook": "train.ipynb"}}, "run.notebook must be an absolute path"),
        ({"run": RUN, "launch": LAUNCH}, "either runs a notebook .run. or starts a process"),
        ({"run": RUN, "kind": "interactive"}, "kind must be batch"),
        ({"launch": LAUNCH, "devices": 1.5}, "devices must be a whole number"),
        ({"launch": LAUNCH, "name": 5}, "a session's name must be printable text"),
        ({"launch": "x"}, "launch must be an object"),
        ({"launch": {"mode": "capsule"}}, "launch.argv is empty"),
        ({}, "launch must be an object"),
    ],
)
@pytest.mark.asyncio
async def test_bodies_that_cannot_be(tmp_path: Path, body: Any, sentence: str) -> None:
    async with platform(tmp_path) as p:
        with pytest.raises(BadRequest, match=sentence):
            await p.client()._json("POST", "sessions", body)
        assert await p.client("admin").sessions() == []


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b'{"kind": NaN}',
        b"\xff\xfe\xfd",
        b'"text"',
        b"[" * 100_000,
        b'{"name": "\\ud800"}',
        b'{"devices": ' + b"9" * 5000 + b"}",
    ],
)
@pytest.mark.asyncio
async def test_what_is_not_json(tmp_path: Path, raw: bytes) -> None:
    async with platform(tmp_path) as p:
        answer = await ask(p, "POST", "api/v1/sessions", raw)
        assert answer.code == 400
        assert json.loads(answer.body)["error"] == "BadRequest"


@pytest.mark.asyncio
async def test_oversize_bodies(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        with pytest.raises(TooLarge, match="larger than 4 MiB, so nothing of it was looked at"):
            await p.client().submit(run=RUN, name="x" * (MAX_BODY_BYTES + 1))
        # Nobody gets to send that much without a token.
        answer = await ask(p, "POST", "api/v1/sessions", b"x" * (MAX_BODY_BYTES + 1), who="")
        assert answer.code == 401
        reader, writer = await asyncio.open_connection("127.0.0.1", p.port)
        writer.write(
            b"POST /services/singularity/api/v1/sessions HTTP/1.1\r\nHost: x\r\n"
            b"Authorization: token alice-token\r\nContent-Length: %d\r\n\r\n"
            % (MAX_DISCARD_BYTES + 1)
        )
        assert b" 413 " in await reader.readline()
        await asyncio.wait_for(reader.read(), 5)  # and the connection is cut
        writer.close()
        await writer.wait_closed()
        assert await p.client("admin").sessions() == []


@pytest.mark.asyncio
async def test_methods(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        for path, operations in by_path().items():
            address = path.replace("{session}", "abc").replace("{user}", "alice")
            methods = {*operations, "OPTIONS", *(["HEAD"] if "GET" in operations else [])}
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - methods:
                answer = await ask(p, method, address, who="")
                assert answer.code == 405, (method, path)
                assert set(answer.headers["Allow"].split(", ")) == methods
                assert json.loads(answer.body)["reason"] == "method_not_allowed"
            answer = await ask(p, "OPTIONS", address, who="")
            assert (answer.code, set(answer.headers["Allow"].split(", "))) == (204, methods)
        head = await ask(p, "HEAD", "api/v1/sessions")
        assert (head.code, head.body) == (200, b"")
        assert int(head.headers["Content-Length"]) > 0
        assert (
            (await ask(p, "HEAD", "api/v1/events"))
            .headers["Content-Type"]
            .startswith("text/event-stream")
        )
        assert (await ask(p, "GET", "api/v1/nowhere", who="")).code == 404


@pytest.mark.asyncio
async def test_the_same_key_for_another_request_is_refused(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        client = p.client()
        first = await client.submit(run=RUN, key="k")
        again = await client.submit(run=RUN, key="k")
        assert again["id"] == first["id"]
        with pytest.raises(Conflict, match=r"already used to create session .* use a new key"):
            await client.submit(run={**RUN, "parameters": {"lr": 1}}, key="k")
        a = await p.kernel()
        for _ in range(2):
            await client._json("POST", f"sessions/{a}/signal", {"signum": 2}, key="s")
        assert [c for c in p.agent.carried_out if c[0] == "session.signal"] == [
            ("session.signal", a)
        ]
        with pytest.raises(Conflict, match="already used to signal session"):
            await client._json("POST", f"sessions/{a}/signal", {"signum": 15}, key="s")
        with pytest.raises(Conflict):
            await client._json("POST", f"sessions/{a}/park", {}, key="s")
        assert len(await client.sessions()) == 2


@pytest.mark.asyncio
async def test_a_run_is_accepted_held_back_and_cancelled(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        client = p.client()
        holder = await client.submit(run=RUN, tier="premium", devices=2)
        await p.state(holder["id"], "ready")
        run = await client.submit(run={**RUN, "variables": {"A": "b"}}, tier="basic")
        assert (run["state"], run["kind"], run["name"]) == ("queued", "batch", "train.ipynb")
        assert run["run"]["variables"] == ["A"]
        assert run["run"]["output"] == f"/home/alice/train-{run['id']}.ipynb"
        assert "launch" not in run
        held = await client.preempt(run["id"])
        assert (held["held_back"], held["queue"]) == (True, None)
        with pytest.raises(Conflict, match="has not been started"):
            await client.suspend(run["id"])
        assert (await client.resume(run["id"]))["held_back"] is False
        assert (await client.end_session(run["id"]))["state"] == "cancelled"


@pytest.mark.asyncio
async def test_errors_have_one_shape_and_requests_a_name(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        answer = await ask(p, "GET", "api/v1/sessions/nope", X_Request_ID="my-request")
        assert answer.headers["X-Request-ID"] == "my-request"
        schema = {"$ref": "#/components/schemas/Problem", "components": document()["components"]}
        Draft202012Validator(schema).validate(json.loads(answer.body))
        other = await ask(p, "GET", "api/v1/sessions/nope", X_Request_ID="bad id\t")
        assert other.headers["X-Request-ID"] != "bad id\t"


# -- metrics --------------------------------------------------------------------------------


def series(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


@pytest.mark.asyncio
async def test_every_series_is_there_from_the_start_and_counts(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:

        async def look() -> dict[str, float]:
            answer = await ask(p, "GET", "metrics", who="metrics")
            assert answer.code == 200
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            return series(answer.body.decode())

        before = await look()
        for word in WORDS:
            assert f'singularity_session_transitions_total{{state="{word}"}}' in before
            for kind in Kind:
                for tier in Tier:
                    label = f'kind="{kind.value}",state="{word}",tier="{tier.value}"'
                    assert before[f"singularity_sessions{{{label}}}"] == 0
        for rule in RULES:
            assert f'singularity_decisions_total{{rule="{rule}"}}' in before
        for verb in verbs():
            for outcome in OUTCOMES:
                label = f'outcome="{outcome}",verb="{verb}"'
                assert f"singularity_session_requests_total{{{label}}}" in before
        for operation in TABLE:
            for status in STATUS_CLASSES:
                label = f'operation="{operation.name}",status="{status}"'
                counted = f"singularity_http_request_seconds_count{{{label}}}" in before
                assert counted is not operation.stream
        assert before['singularity_devices{type="cpu",use="free"}'] == 2
        assert before["singularity_nodes_connected"] == 1

        session = await p.holder(tier="premium")
        other = await p.kernel(devices=2)
        p.agent.need(other)
        await p.state(other, "waiting")
        stream = p.client().events()
        await anext(stream)
        await p.client().park(session)
        with pytest.raises(Conflict):
            await p.client().park(session)
        await p.state(other, "running")
        after = await look()
        assert set(after) == set(before)
        assert after['singularity_sessions{kind="interactive",state="parked",tier="premium"}'] == 1
        assert after['singularity_devices{type="cpu",use="held"}'] == 2
        assert after["singularity_attach_duration_seconds_count"] == 2
        assert after["singularity_park_duration_seconds_count"] == 1
        assert after["singularity_event_streams_open"] == 1
        assert after["singularity_ledger_write_seconds_count"] > 5
        for outcome in ("done", "refused"):
            label = f'outcome="{outcome}",verb="park"'
            assert after[f"singularity_session_requests_total{{{label}}}"] == 1
        assert after['singularity_actions_total{action="park",rule="user.park"}'] == 1
        await stream.aclose()


@pytest.mark.asyncio
async def test_metrics_are_not_for_everybody(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        codes = {
            who: (await ask(p, "GET", "metrics", who=who)).code
            for who in ("alice", "admin", "metrics", "", "no-use")
        }
        assert codes == {"alice": 403, "admin": 200, "metrics": 200, "": 401, "no-use": 403}
        assert (await ask(p, "GET", "api/v1/cluster", who="metrics")).code == 403


@pytest.mark.asyncio
async def test_metrics_without_a_token_when_the_setting_says_so(tmp_path: Path) -> None:
    async with platform(tmp_path, app={"authenticate_metrics": False}) as p:
        assert (await ask(p, "GET", "metrics", who="")).code == 200
        assert (await ask(p, "GET", "api/v1/cluster", who="")).code == 401


# -- events for others, logs ----------------------------------------------------------------


def test_event_schemas_have_the_values_of_the_tables() -> None:
    import yaml
    from jupyter_events import EventLogger

    logger = EventLogger()
    shown = {}
    for name, path in SCHEMAS.items():
        logger.register_event_schema(path)  # validates it
        schema = yaml.safe_load(path.read_text())
        assert schema["$id"] == name
        shown |= {f"{path.name}/{k}": v.get("enum") for k, v in schema["properties"].items()}
    session = "session-state.v1.yaml"
    assert shown[f"{session}/state"] == list(WORDS)
    assert shown[f"{session}/process_state"] == [s.value for s in ProcessState]
    assert shown[f"{session}/device_state"] == [s.value for s in DeviceState]
    assert shown[f"{session}/tier"] == [t.value for t in Tier]
    assert shown[f"{session}/kind"] == [k.value for k in Kind]
    assert shown["session-request.v1.yaml/verb"] == verbs()
    assert shown["session-request.v1.yaml/outcome"] == list(OUTCOMES)


@pytest.mark.asyncio
async def test_changes_and_requests_are_written_as_events(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    async with platform(tmp_path, app={"event_log": str(path)}) as p:
        session = await p.holder(name="n")
        await ask(p, "POST", f"api/v1/sessions/{session}/park", {}, X_Request_ID="r1")
        with pytest.raises(NotFound):
            await p.client("bob").park(session)
        with pytest.raises(Conflict):
            await p.agent.command(session, "park")  # %singularity park
        assert path.stat().st_mode & 0o777 == 0o600
        events = [json.loads(line) for line in path.read_text().splitlines()]
        states = [e for e in events if "session-state" in e["__schema__"]]
        history = await p.client().history(session)
        assert [(e["state"], e["rule"]) for e in states] == [
            (line["state"], line["rule"]) for line in history
        ]
        assert {e["user"] for e in states} == {"alice"}
        asked = [e for e in events if "session-request" in e["__schema__"]]
        assert [(e["verb"], e["by"], e["outcome"], e["error"]) for e in asked] == [
            ("create", "alice", "done", None),
            ("park", "alice", "done", None),
            ("park", "bob", "refused", "not_found"),
            ("park", "alice", "refused", "conflict"),
        ]
        assert {e["session"] for e in asked} == {session}
        assert asked[1]["request"] == "r1"
        assert any("node-state" in e["__schema__"] and e["connected"] for e in events)


@pytest.mark.asyncio
async def test_what_nobody_foresaw_is_failed_and_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"

    async def broken(*_: Any) -> None:
        raise KeyError("an error of ours")

    async with platform(tmp_path, app={"event_log": str(path)}) as p:
        session = await p.kernel()
        monkeypatch.setattr(p.controller.desk, "act", broken)
        assert (await ask(p, "POST", f"api/v1/sessions/{session}/park", {})).code == 500
        assert (await ask(p, "POST", f"api/v1/sessions/{session}/park", {"x": 1})).code == 400
        events = [json.loads(line) for line in path.read_text().splitlines()]
        parks = [e for e in events if e.get("verb") == "park"]
        assert [(e["outcome"], e["error"]) for e in parks] == [
            ("failed", None),
            ("refused", "bad_request"),
        ]
        metrics = series((await ask(p, "GET", "metrics", who="admin")).body.decode())
        for outcome, count in (("done", 0), ("refused", 1), ("failed", 1)):
            label = f'outcome="{outcome}",verb="park"'
            assert metrics[f"singularity_session_requests_total{{{label}}}"] == count


@pytest.mark.asyncio
async def test_every_request_is_one_line_with_its_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with platform(tmp_path) as p:
        session = await p.kernel()
        logger = logging.getLogger("singularity.access")
        lines: list[dict[str, Any]] = []

        class Keep(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(json.loads(logs.JsonFormatter().format(record)))

        keep = Keep()
        logger.addHandler(keep)
        logger.setLevel(logging.INFO)
        try:
            await ask(p, "GET", f"api/v1/sessions/{session}/why", X_Request_ID="r1")
            await ask(p, "GET", f"api/v1/sessions/{session}", who="bob", X_Request_ID="r2")
            await until(lambda: len(lines) == 2, "two lines")
        finally:
            logger.removeHandler(keep)
            logger.setLevel(logging.NOTSET)
        assert [(x["request"], x["session"], x["user"], x["status"]) for x in lines] == [
            ("r1", session, "alice", 200),
            ("r2", session, "bob", 404),
        ]
        assert f"there is no session {session}" in lines[1]["message"]


@pytest.mark.asyncio
async def test_what_the_service_does_is_logged_with_the_session_it_is_about(
    tmp_path: Path,
) -> None:
    async with platform(tmp_path) as p:
        lines: list[dict[str, Any]] = []

        class Keep(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(json.loads(logs.JsonFormatter().format(record)))

        keep = Keep()
        p.controller.log.addHandler(keep)
        level = p.controller.log.level
        p.controller.log.setLevel(logging.INFO)
        try:
            victim = await p.holder("alice", devices=2, tier="basic")
            await p.holder("bob", devices=2, tier="premium")
        finally:
            p.controller.log.removeHandler(keep)
            p.controller.log.setLevel(level)
        (parking,) = [line for line in lines if line["message"].startswith("Park ")]
        assert (parking["session"], parking["node"]) == (victim, "local")
        assert "premium goes before basic" in parking["message"]
