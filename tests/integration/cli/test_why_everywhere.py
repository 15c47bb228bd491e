"""`why` says one sentence, whoever asks: REST, the command, the magic, the history and events."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from singularity_kernel.kernel.magics import present
from support.cli_commands import Commands
from support.scheduler_service import Platform, platform

pytestmark = pytest.mark.asyncio


async def everywhere(p: Platform, session: str) -> dict[str, str]:
    """Where -> what is said there at this moment."""
    cli = await Commands(p.url, "alice-token")("why", session)
    assert cli.code == 0, cli.err
    answer = await p.agent.command(session, "why")
    magic: Any = present("why", answer, datetime.now(timezone.utc))
    view = await p.client().get_session(session)
    start = f"{view['user']}/{view['name']} is {view['state']}: "
    history = (await p.client().history(session))[-1]["reason"]
    lines = map(json.loads, (p.tmp_path / "events.jsonl").read_text().splitlines())
    changes = [e for e in lines if "session-state" in e["__schema__"]]
    events = [e["reason"] for e in changes if e["session"] == session]
    return {
        "REST": (await p.client().why(session))["sentence"],
        "command": " ".join(cli.out.split()),
        "magic": str(magic),
        "history": f"{start}{history}.",
        "events": f"{start}{events[-1]}.",
    }


async def test_one_sentence_everywhere(tmp_path: Path) -> None:
    app = {"event_log": str(tmp_path / "events.jsonl")}
    async with platform(tmp_path, nodes=("local",), devices=1, app=app) as p:
        victim = await p.holder(name="train", tier="basic")
        moment = p.controller.now()
        p.controller._clock = lambda: moment  # nothing changes with time meanwhile
        first = await p.kernel("bob", name="eval", tier="premium")
        p.agent.busy(first, True)
        p.agent.need(first)
        await p.state(first, "running")
        await p.state(victim, "parked")
        said = await everywhere(p, victim)
        assert len(set(said.values())) == 1, said
        assert said["REST"] == (
            "alice/train is parked: paused for bob/eval: premium goes before basic and needs 1 "
            "device; nothing is lost; it comes back with the next device call and running code "
            "just waits; rule preempt.tier; its device state is kept in the memory of node local; "
            "it cannot be said when: no waits of basic sessions for 1 device were measured yet."
        )

        p.agent.need(victim)
        await p.state(victim, "waiting")
        said = await everywhere(p, victim)
        assert len(set(said.values())) == 1, said
        assert said["REST"] == (
            "alice/train is waiting: its code called a device: it waits for 1 device; place 1 of "
            "the queue for basic; in use: cpu:0 by bob/eval (premium, busy); before that: paused "
            "for bob/eval: premium goes before basic and needs 1 device (rule preempt.tier); its "
            "device state is kept in the memory of node local; it cannot be said when: no waits of "
            "basic sessions for 1 device were measured yet."
        )


async def test_what_waits_took_is_known_again_after_a_restart(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("local",), devices=1) as p:
        victim = await p.holder(name="train", tier="basic")
        first = await p.kernel("bob", name="eval", tier="premium")
        p.agent.busy(first, True)
        for _ in range(5):
            p.agent.need(first)
            await p.state(first, "running")
            p.agent.need(victim)
            await p.state(victim, "waiting")
            await p.client("bob").park(first)
            await p.state(victim, "running")
        p.agent.need(first)
        await p.state(victim, "parked")
        before = await p.client().why(victim)
        taken = before["facts"]["preempted"]
        assert (taken["by"], taken["tier"], taken["reason_code"]) == (
            "bob/eval",
            "premium",
            "paused_lower",
        )
        await p.stop()
        await p.start()
        await p.ready()
        after = await p.client().why(victim)
        assert after["facts"]["preempted"] == before["facts"]["preempted"] | {
            "since_s": after["facts"]["preempted"]["since_s"]
        }
        assert after["facts"]["estimate"] == before["facts"]["estimate"]
        assert after["facts"]["estimate"]["basis"] == "experience"
        assert after["facts"]["estimate"]["samples"] == 5
