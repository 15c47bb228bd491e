"""Who may do what: tokens, scopes, and that nobody sees or touches another user's sessions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from singularity_proxy.errors import BadRequest, Forbidden, NotFound, Unavailable
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.service.api.auth import read_operator_token
from singularity_scheduler.service.operations import streams
from support.scheduler_service import ACCESS, LAUNCH, USE, platform, until
from tornado.httpclient import AsyncHTTPClient


@pytest.mark.asyncio
async def test_another_users_session_is_not_there(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        a = await p.holder("alice", name="a")
        bob = p.client("bob")
        for attempt in (
            bob.get_session(a),
            bob.end_session(a),
            bob.signal(a, 9),
            bob.park(a),
            bob.resume(a),
            bob.migrate(a, 1),
            bob.checkpoint(a),
            bob.why(a),
            bob.history(a),
        ):
            with pytest.raises(NotFound, match=f"there is no session {a}") as caught:
                await attempt
            assert "alice" not in str(caught.value)
        assert await bob.sessions() == []
        devices = (await bob.cluster())["devices"]
        assert [d["session"] for d in devices] == ["other", None]
        shown = await p.client("alice").get_session(a)
        assert shown["state"] == "running"


@pytest.mark.asyncio
async def test_admins_and_the_spawner_see_all_but_services_own_nothing(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        a = await p.holder("alice", name="a")
        for who in ("admin", "spawner"):
            assert (await p.client(who).get_session(a))["user"] == "alice"
            assert [s["id"] for s in await p.client(who).sessions()] == [a]
        with pytest.raises(Forbidden, match="spawner is a service and a session belongs to a user"):
            await p.kernel("spawner")
        ended = await p.client("spawner").end_session(a)
        assert ended["reason"].startswith("closed by spawner; ")


@pytest.mark.asyncio
async def test_a_service_named_like_a_user_sees_nothing_of_the_users(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        a = await p.holder("alice", name="a")
        namesake = p.client("namesake")
        assert await namesake.sessions() == []
        assert [d["session"] for d in (await namesake.cluster())["devices"]] == ["other", None]
        stream = namesake.events()
        assert (await anext(stream))["data"] == {"sessions": []}
        await stream.aclose()
        with pytest.raises(NotFound):
            await namesake.get_session(a)


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        ("expired", "JupyterHub does not know this token, or it has expired"),
        ("no-use", "lacks the scope custom:singularity:use"),
        ("no-access", "gives no access to this service"),
    ],
)
@pytest.mark.asyncio
async def test_refused_tokens(tmp_path: Path, token: str, sentence: str) -> None:
    async with platform(tmp_path) as p:
        client = p.client(token)
        with pytest.raises(Forbidden, match=sentence):
            await client.cluster()
        with pytest.raises(Forbidden, match=sentence):
            await client.create_session(kind="interactive", launch=LAUNCH)
        with pytest.raises(Forbidden, match=sentence):
            await anext(client.events())
        assert p.agent.sessions == {}


@pytest.mark.asyncio
async def test_tokens_in_cookies_and_urls_do_not_count(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        url = f"{p.url}api/v1/cluster"
        for where, headers in (
            (url, {}),
            (f"{url}?token=alice-token", {}),
            (url, {"Cookie": "service-singularity=alice-token"}),
            (url, {"Authorization": "Basic alice-token"}),
        ):
            response = await AsyncHTTPClient().fetch(where, headers=headers, raise_error=False)
            assert response.code == 401
            assert response.headers["Content-Type"] == "application/problem+json"
            assert response.headers["WWW-Authenticate"] == 'Bearer realm="JupyterHub"'
            problem = json.loads(response.body)
            assert problem == {
                "type": "urn:jupyter-singularity:unauthenticated",
                "title": "Unauthorized",
                "status": 401,
                "detail": "no JupyterHub token came with the request: send 'Authorization: token "
                "...'",
                "reason": "unauthenticated",
                "error": "Unauthenticated",
            }


@pytest.mark.asyncio
async def test_a_token_that_is_revoked_stops_working(tmp_path: Path) -> None:
    async with platform(tmp_path, cache_max_age=1) as p:
        await p.client().cluster()
        del p.hub.tokens["alice-token"]
        await asyncio.sleep(1.1)
        with pytest.raises(Forbidden):
            await p.client().cluster()


@pytest.mark.asyncio
async def test_streams_end_when_their_token_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.1)
    async with platform(tmp_path, cache_max_age=1) as p:
        session = await p.kernel()
        p.agent.logs[session] = b"hello\n"
        events, log = p.client().events(), p.client().logs(session, follow=True)
        await anext(events)
        assert await anext(log) == "hello\n"
        del p.hub.tokens["alice-token"]
        with pytest.raises(Unavailable, match="event stream ended"):
            await asyncio.wait_for(anext(events), 10)
        with pytest.raises(Forbidden, match="JupyterHub does not know this token"):
            await asyncio.wait_for(anext(log), 10)
        assert p.services.feed.listeners == 0


@pytest.mark.asyncio
async def test_a_busy_stream_of_a_lost_admin_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.1)
    async with platform(tmp_path, cache_max_age=1) as p:
        everything = p.client("admin").events()
        await anext(everything)
        p.hub.tokens["admin-token"] = {**p.hub.tokens["admin-token"], "scopes": [ACCESS, USE]}

        async def read() -> None:
            while True:
                await anext(everything)

        reading = asyncio.ensure_future(read())
        for number in range(400):
            p.services.feed.add("bob", "session", str(number))
            await asyncio.sleep(0.01)
            if reading.done():
                break
        with pytest.raises(Unavailable, match="event stream ended"):
            await asyncio.wait_for(reading, 30)


@pytest.mark.asyncio
async def test_streams_go_on_while_the_hub_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.1)
    async with platform(tmp_path, cache_max_age=1) as p:
        stream = p.client().events()
        await anext(stream)
        p.hub.ill, asked = True, p.hub.asked
        await until(lambda: p.hub.asked > asked, "asked again")
        p.services.feed.add("alice", "session", "1")
        assert (await asyncio.wait_for(anext(stream), 5))["data"] == 1
        await stream.aclose()


@pytest.mark.asyncio
async def test_the_hub_is_not_asked_for_every_request_and_may_be_away(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        await p.client().cluster()
        await p.client().cluster()
        assert p.hub.asked == 1
        p.hub.ill = True
        assert await p.client().cluster()
        with pytest.raises(Unavailable, match="JupyterHub could not check the token"):
            await p.client("bob").cluster()


@pytest.mark.asyncio
async def test_identity_is_for_oneself_and_for_the_spawner(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        for who in ("alice", "spawner"):
            assert (await p.client(who).identity("alice"))["uid"] == 70001
        with pytest.raises(Forbidden, match="only be asked for by its user or an administrator"):
            await p.client("bob").identity("alice")


@pytest.mark.asyncio
async def test_a_node_only_speaks_for_its_own_sessions(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        a = await p.holder("alice", name="a")
        with pytest.raises(NotFound):
            await p.controller.reports.on_command("elsewhere", a, "status", {}, "user")
        p.controller.reports.on_event("elsewhere", a, "process.exited", {"exit_code": 0})
        assert (await p.client().get_session(a))["state"] == "running"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("POST", "sessions", "{", 400, "BadRequest"),
        ("POST", "sessions", "[]", 400, "BadRequest"),
        ("POST", "sessions", "{}", 400, "BadRequest"),
        ("GET", "nowhere", None, 404, "NotFound"),
        ("DELETE", "cluster", None, 405, "NotAllowed"),
        ("GET", "sessions/0123456789ab/history?limit=0", None, 400, "BadRequest"),
        ("GET", "sessions/0123456789ab/history", None, 404, "NotFound"),
    ],
)
@pytest.mark.asyncio
async def test_every_refusal_is_a_problem_document(
    tmp_path: Path, method: str, path: str, body: str | None, status: int, error: str
) -> None:
    async with platform(tmp_path) as p:
        response = await AsyncHTTPClient().fetch(
            f"{p.url}api/v1/{path}",
            method=method,
            body=body,
            headers={"Authorization": "token alice-token"},
            raise_error=False,
        )
        assert response.code == status
        problem = json.loads(response.body)
        assert (problem["status"], problem["error"]) == (status, error)
        assert problem["detail"]


@pytest.mark.asyncio
async def test_limits_of_small_things(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        a = await p.kernel()
        client = p.client()
        with pytest.raises(BadRequest, match="limit must be a whole number from 1"):
            await client.history(a, limit=0)
        with pytest.raises(BadRequest, match="signum must be the number of a signal"):
            await client.signal(a, 0)
        with pytest.raises(BadRequest, match="grace_s must be a number of seconds"):
            await client.end_session(a, grace_s=-1)
        with pytest.raises(BadRequest, match="Idempotency-Key has 1 to 200 characters"):
            await client.create_session(kind="batch", launch=LAUNCH, key="k" * 201)


@pytest.mark.asyncio
async def test_client_without_service_or_environment() -> None:
    with pytest.raises(Unavailable, match="SINGULARITY_API_URL is not set"):
        ServiceClient.from_environment({"JUPYTERHUB_API_TOKEN": "t"})
    with pytest.raises(Unavailable, match="SINGULARITY_API_URL and JUPYTERHUB_API_TOKEN are not"):
        ServiceClient.from_environment({})
    env = {"SINGULARITY_API_URL": "http://127.0.0.1:9/", "JUPYTERHUB_API_TOKEN": "t"}
    client = ServiceClient.from_environment(env)
    with pytest.raises(Unavailable, match="the scheduler service does not answer"):
        await client.cluster()
    with pytest.raises(Unavailable):
        await anext(client.events())


def token_file(folder: Path, token: str, mode: int = 0o600) -> str:
    path = folder / "operator"
    path.write_text(token + "\n")
    path.chmod(mode)
    return str(path)


@pytest.mark.asyncio
async def test_the_operator_needs_no_hub(tmp_path: Path) -> None:
    token = "o" * 40
    async with platform(tmp_path, app={"operator_token_file": token_file(tmp_path, token)}) as p:
        a = await p.holder("alice", name="a")
        await p.hub.close()
        operator = ServiceClient(p.url, token, timeout=20.0)
        assert [s["id"] for s in await operator.sessions()] == [a]
        with pytest.raises(Forbidden, match="operator is a service and a session belongs"):
            await operator.create_session(kind="interactive", launch=LAUNCH)
        with pytest.raises(Unavailable, match="JupyterHub could not check the token"):
            await ServiceClient(p.url, token[:-1], timeout=20.0).sessions()
        assert (await operator.end_session(a))["reason"].startswith("closed by operator; ")


@pytest.mark.parametrize(
    ("token", "mode", "sentence"),
    [
        ("o" * 40, 0o640, "others may read .*operator, the token of the operator: chmod 600"),
        ("o" * 40, 0o604, "others may read"),
        ("short", 0o600, "has fewer than 32 characters: write a longer one"),
        ("", 0o600, "has fewer than 32 characters"),
    ],
)
def test_a_token_of_the_operator_that_is_no_secret(
    tmp_path: Path, token: str, mode: int, sentence: str
) -> None:
    with pytest.raises(BadRequest, match=sentence):
        read_operator_token(token_file(tmp_path, token, mode))
    with pytest.raises(BadRequest, match="operator_token_file cannot be read"):
        read_operator_token(str(tmp_path / "missing"))
    assert read_operator_token("") == ""
