"""Sessions that are kept alive, what is planned for them and what their devices do: over the API,
in the event stream, across a restart."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from singularity_proxy.errors import BadRequest, Conflict, Forbidden, NotFound
from singularity_scheduler.service.schemas import common as schemas
from support.scheduler_service import Platform, platform, until

PARAMETERS = {"idle_soft_s": 900.0, "idle_grace_s": 0.0, "min_run_s": 0.0, "keep_max_s": 7200.0}
CHECK = Draft202012Validator(
    {"$ref": "#/components/schemas/SessionStatus", "components": {"schemas": schemas.COMPONENTS}}
)


def seconds_to(text: str | None) -> float:
    assert text is not None
    return (datetime.fromisoformat(text) - datetime.now(timezone.utc)).total_seconds()


async def resting(p: Platform) -> str:
    """A notebook of alice that holds a device which no call reaches."""
    session = await p.kernel("alice", name="a")
    p.agent.busy(session, True)
    p.agent.need(session)
    await p.state(session, "running")
    p.agent.busy(session, False)
    p.agent.event(session, "device.use", quiet_s=5.0)
    await until(lambda: p.controller.state.sessions[session].unused_since, "quiet")
    return session


@pytest.mark.asyncio
async def test_a_keep_is_in_the_document_in_why_and_survives_a_restart(tmp_path: Path) -> None:
    async with platform(tmp_path, controller={"parameters": PARAMETERS}) as p:
        session, client = await resting(p), p.client()
        before = await client.get_session(session)
        assert seconds_to(before["planned"]["at"]) == pytest.approx(895, abs=60)
        assert (before["planned"]["what"], before["planned"]["rule"]) == ("park", "idle.reclaim")
        assert seconds_to(before["gives_at"]) < 1
        assert before["unused_since"] is not None
        assert before["keep_until"] is None
        done = await client.keep(session, 3600)
        assert seconds_to(done["keep_until"]) == pytest.approx(3600, abs=60)
        assert done["planned"]["at"] == done["gives_at"] == done["keep_until"]
        assert done["reason"] == before["reason"]
        CHECK.validate(done)
        assert "It is kept alive for another" in (await client.why(session))["sentence"]
        [line] = [h for h in await client.history(session) if h["rule"] == "user.keep"]
        assert line["reason"].startswith("kept alive by alice for 60 min")
        await p.stop()
        await p.start()
        await p.ready()
        assert (await client.get_session(session))["keep_until"] == done["keep_until"]
        ended = await p.client("admin").keep(session, 0)
        assert ended["keep_until"] is None


@pytest.mark.asyncio
async def test_what_is_refused(tmp_path: Path) -> None:
    async with platform(tmp_path, controller={"parameters": PARAMETERS}) as p:
        session, client = await resting(p), p.client()
        with pytest.raises(BadRequest, match=r"ask for at most 2\.0 h \(keep_max_s\)"):
            await client.keep(session, 7201)
        with pytest.raises(BadRequest, match="for_s must be a number of seconds, 0 or more"):
            await client.keep(session, -1)
        with pytest.raises(BadRequest, match="for_s"):
            await client.keep(session, "an hour")  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            await p.client("bob").keep(session, 60)
        with pytest.raises(NotFound):
            await p.client("bob").devices(session)
        await p.client("admin").set_parameters({"keep_max_s": 0})
        with pytest.raises(Forbidden, match="an administrator can allow it"):
            await client.keep(session, 60)
        assert (await client.get_session(session))["keep_until"] is None
        await client.end_session(session)
        with pytest.raises(Conflict, match="has ended"):
            await client.keep(session, 60)


@pytest.mark.asyncio
async def test_a_session_keeps_itself(tmp_path: Path) -> None:
    async with platform(tmp_path, controller={"parameters": PARAMETERS}) as p:
        session = await resting(p)
        done: Any = await p.agent.command(session, "keep", for_s=60)
        assert seconds_to(done["keep_until"]) == pytest.approx(60, abs=30)


@pytest.mark.asyncio
async def test_who_listens_hears_when_administrators_change_what_is_planned(
    tmp_path: Path,
) -> None:
    async with platform(tmp_path, controller={"parameters": PARAMETERS}) as p:
        session = await resting(p)
        stream = p.client().events()
        [shown] = (await anext(stream))["data"]["sessions"]
        assert seconds_to(shown["planned"]["at"]) > 500
        await p.client("admin").set_parameters({"idle_soft_s": 0})
        async with asyncio.timeout(30):
            async for event in stream:
                if event["event"] == "session" and event["data"]["planned"] is None:
                    break
        assert event["data"]["id"] == session
        [listed] = await p.client().sessions()
        assert listed["planned"] is None


@pytest.mark.asyncio
async def test_what_the_devices_do_is_live_and_leaves_no_line_in_the_ledger(
    tmp_path: Path,
) -> None:
    async with platform(tmp_path, controller={"parameters": PARAMETERS}) as p:
        session, client = await resting(p), p.client()
        empty = await client.devices(session)
        assert (empty["at"], [d["virtual_device"] for d in empty["devices"]]) == (None, [0])
        mine, others = client.events(), p.client("bob").events()
        await anext(mine)
        await anext(others)
        [device] = p.controller.state.sessions[session].devices
        figures = {
            "virtual_device": 0,
            "device": device,
            "memory_used_bytes": 1 << 20,
            "utilisation_percent": 37.5,
        }
        written: list[Any] = []
        p.controller.ledger.on_write = lambda *what: written.append(what)
        p.agent.event("", "node.devices", devices=[], sessions={session: [figures]})
        async with asyncio.timeout(30):
            while (event := await anext(mine))["event"] != "devices":
                pass
        told = event["data"]
        assert told == await client.devices(session)
        [shown] = told["devices"]
        assert shown.items() >= figures.items()
        assert shown["memory_total_bytes"] > 0
        Draft202012Validator(
            {
                "$ref": "#/components/schemas/SessionDevices",
                "components": {"schemas": schemas.COMPONENTS},
            }
        ).validate(told)
        assert written == []
        await client.park(session)
        async with asyncio.timeout(30):
            while (event := await anext(mine))["event"] != "devices":
                pass
        assert event["data"]["devices"] == []
        assert (await client.devices(session))["devices"] == []
        await client.end_session(session)
        assert json.dumps(session) not in json.dumps([e async for e in _until_quiet(others)]), (
            "nobody else hears of it"
        )


async def _until_quiet(stream: Any) -> Any:
    """What comes within half a second."""
    following = asyncio.ensure_future(anext(stream))
    while (await asyncio.wait({following}, timeout=0.5))[0]:
        yield following.result()
        following = asyncio.ensure_future(anext(stream))
    following.cancel()
