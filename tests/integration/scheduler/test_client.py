"""The Python client against the real service: waiting and following over breaks, blocking and not,
and the page about it, whose code is run."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, Conflict, NotFound, Unavailable
from singularity_scheduler.client import Client, ServiceClient
from singularity_scheduler.client.reading import ENDED
from singularity_scheduler.core.values.states import FINAL
from support.scheduler_service import Platform, platform, until

pytestmark = pytest.mark.asyncio

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-to" / "python-client.md"
RUN = {"notebook": "/home/alice/n.ipynb"}


def blocking(p: Platform, who: str = "alice") -> Client:
    return Client(p.url, f"{who}-token", timeout=20.0)


async def listens(p: Platform, count: int = 1) -> None:
    await until(lambda: p.services.feed.listeners >= count, "somebody listens")


async def test_waiting_ends_with_the_event(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await p.kernel()
        waiting = asyncio.ensure_future(p.client().wait(session, "running"))
        ended = asyncio.ensure_future(p.client().wait(session))
        several = asyncio.ensure_future(p.client().wait(session, ("parked", "running")))
        held = asyncio.ensure_future(p.client().wait(session, lambda d: bool(d["devices"])))
        await listens(p, 4)
        assert not waiting.done()
        p.agent.need(session)
        assert (await waiting)["state"] == (await several)["state"] == "running"
        assert (await held)["devices"]
        assert not ended.done()
        p.agent.exit(session, 0)
        assert (await ended)["state"] == "completed"
        assert (await p.client().wait(session))["state"] == "completed"  # it is not in the snapshot


async def test_what_cannot_come_is_not_waited_for(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await p.kernel()
        waiting = asyncio.ensure_future(p.client().wait(session, "running"))
        await listens(p)
        p.agent.exit(session, 3, "it failed")
        with pytest.raises(Conflict, match="is failed and will not be what was waited for"):
            await waiting
        with pytest.raises(BadRequest, match="there is no state 'runs' to wait for"):
            await p.client().wait(session, "runs")
        with pytest.raises(NotFound):
            await p.client("bob").wait(session)
        other = await p.kernel()
        with pytest.raises(TimeoutError):
            await p.client().wait(other, timeout=0.1)
        await until(lambda: not p.services.feed.listeners, "nobody listens any more")


async def test_waiting_goes_on_when_the_service_is_started_anew(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await p.kernel()
        waiting = asyncio.ensure_future(p.client().wait(session))
        told: list[str] = []

        async def read() -> None:
            async for event in p.client().stream_events():
                if event["event"] == "session":
                    told.append(event["data"]["state"])

        reading = asyncio.ensure_future(read())
        await listens(p, 2)
        await p.stop()
        p.agent.exit(session, 0)  # while nobody is there to tell it
        await p.start()
        assert (await waiting)["state"] == "completed"
        await p.ready()
        newer = await p.kernel()
        p.agent.need(newer)
        await until(lambda: "running" in told, "the stream went on")
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


async def test_a_service_that_stays_away_is_one_sentence(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await p.kernel()
        waiting = asyncio.ensure_future(p.client().wait(session, away_s=0.2))
        await listens(p)
        await p.stop()
        with pytest.raises(Unavailable, match="event stream"):
            await waiting
        await p.start()


async def test_the_blocking_client_also_where_a_loop_runs(tmp_path: Path) -> None:
    """As in a notebook: called in threads here, because the service runs on this loop."""
    async with platform(tmp_path) as p:
        session = await p.holder(name="nb")
        p.agent.logs[session] = b"one\ntwo\n"

        def work() -> None:
            async def inside() -> str:
                return str(client.get_session(session)["state"])  # a loop runs in this thread

            with blocking(p) as client:
                assert asyncio.run(inside()) == "running"
                assert [s["id"] for s in client.sessions(kind="interactive")] == [session]
                assert "".join(client.logs(session)) == "one\ntwo\n"
                assert client.wait(session, "running")["id"] == session
                assert client.park(session)["state"] == "parked"
                with pytest.raises(NotFound, match="there is no session 0"):
                    client.get_session("0")
                events = client.stream_events()
                assert next(events)["event"] == "snapshot"
                events.close()
                assert client.usage(by="session")["usage"][0]["session"] == session
            with blocking(p, "bob") as other:
                assert other.sessions() == []

        await asyncio.to_thread(work)
        await until(lambda: not p.services.feed.listeners, "streams were closed")


async def test_every_method_is_one_of_the_asynchronous_client() -> None:
    own = {name for name in vars(Client) if not name.startswith("_")} - {"close"}
    assert all(hasattr(ServiceClient, name) for name in own)
    assert Client.submit.__doc__ == ServiceClient.submit.__doc__
    assert frozenset(state.value for state in FINAL) == ENDED


async def test_importing_it_brings_nothing_heavy() -> None:
    code = (
        "import sys, singularity_scheduler.client as c; c.Client; c.ServiceClient;"
        "print([m for m in ('sqlalchemy', 'alembic', 'jupyterhub', 'torch', 'tornado', 'zmq', "
        "'IPython', 'traitlets', 'jsonschema') if m in sys.modules])"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    import singularity_scheduler

    assert (Path(str(singularity_scheduler.__file__)).parent / "py.typed").is_file()


async def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len(blocks) == 6
    async with platform(tmp_path) as p:
        monkeypatch.setenv("SINGULARITY_API_URL", p.url)
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "alice-token")
        notebook = await p.holder(name="explore.ipynb")
        names: dict[str, Any] = {"__name__": "__page__"}

        async def live() -> None:
            """Runs compute a little, print and end."""
            while True:
                for session, facts in list(p.agent.sessions.items()):
                    if session != notebook and facts["kind"] == "batch":
                        p.agent.logs.setdefault(session, b"epoch 1\n")
                        await step(session)
                await asyncio.sleep(0.02)

        async def step(session: str) -> None:
            view = await p.controller.find(session)
            if view.word == "ready":
                p.agent.need(session)
            elif view.word == "running" and p.services.feed.listeners:  # that was seen
                p.agent.exit(session, 0)

        living = asyncio.ensure_future(live())
        try:
            for block in blocks:
                code = compile(block, str(PAGE), "exec")
                await asyncio.wait_for(asyncio.to_thread(exec, code, names), 60.0)
        finally:
            living.cancel()
        assert names["done"]["state"] == "completed"
        assert names["notebook"] == notebook
        assert [c["name"] for c in await p.client().checkpoints(notebook)] == ["before"]
