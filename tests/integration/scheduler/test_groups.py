"""Groups of runs through the service: made in one request, limited, read, ended, kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, Conflict, NotFound
from singularity_scheduler.client import ServiceClient
from support.scheduler_service import platform

Json = dict[str, Any]

SESSION = {"name": "study", "tier": "basic", "run": {"notebook": "/home/alice/train.ipynb"}}
MEMBERS = [{"values": {"lr": lr, "seed": seed}} for lr in (0.1, 0.01) for seed in (0, 1)]


@pytest.mark.asyncio
async def test_a_group_is_made_at_once_and_only_once(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        client = p.client()
        made = await asyncio.gather(
            *(client.submit_group(SESSION, MEMBERS, max_parallel=1, key="k") for _ in range(3))
        )
        assert len({group["id"] for group in made}) == 1
        group = made[0]
        assert (group["name"], group["members"], group["state"]) == ("study", 4, "live")
        assert sum(group["states"].values()) == 4
        assert group["states"]["queued"] == 3
        sessions = group["sessions"]
        assert [s["name"] for s in sessions] == ["study-1", "study-2", "study-3", "study-4"]
        assert [s["group"]["values"] for s in sessions] == [m["values"] for m in MEMBERS]
        assert sessions[1]["run"]["parameters"] == {"lr": 0.1, "seed": 1}
        outputs = {s["run"]["output"] for s in sessions}
        assert f"/home/alice/train-{group['id']}-3.ipynb" in outputs
        assert len(outputs) == 4
        assert sessions[3]["reason"] == "member 4 of 4: at most 1 run at once"
        assert len(await client.sessions()) == 4
        with pytest.raises(Conflict, match="already used"):
            await client.submit_group(SESSION, MEMBERS[:2], key="k")
        with pytest.raises(Conflict, match="already used"):
            await client.submit(run=SESSION["run"], key="k")  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_group_outlives_the_service_and_ends_as_one(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        client = p.client()
        group = await client.submit_group(SESSION, MEMBERS, max_parallel=2)
        older = await client.submit_group({**SESSION, "name": "other"}, MEMBERS[:1])
        await p.stop()
        await p.start()
        await p.ready()
        client = p.client()
        assert [g["id"] for g in await client.groups()] == [older["id"], group["id"]]
        found = await client.get_group(group["id"])
        assert found["states"]["queued"] == 2
        assert found["max_parallel"] == 2
        first = found["sessions"][0]["id"]
        await client.end_session(first)
        assert (await client.get_group(group["id"]))["states"]["queued"] == 1
        ended = await client.cancel_group(group["id"], "enough")
        assert (ended["state"], ended["states"]) == ("cancelled", {"cancelled": 4})
        assert ended["sessions"][3]["reason"] == "cancelled by alice: enough"
        assert (await client.cancel_group(group["id"]))["updated_at"] == ended["updated_at"]
        document = await client.get_session(ended["sessions"][3]["id"])
        assert document["group"]["number"] == 4
        assert (await client.get_group(older["id"]))["state"] == "live"


@pytest.mark.asyncio
async def test_a_group_ends_when_its_time_is_over(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        client = p.client()
        limits = {"max_parallel": 1, "timeout_s": 2}
        group = await client.submit_group(SESSION, MEMBERS, **limits)  # type: ignore[arg-type]
        other = await client.submit_group({**SESSION, "name": "other"}, MEMBERS[:1])
        assert (group["timeout_s"], other["timeout_s"]) == (2, None)
        await p.stop()
        await p.start()
        await p.ready()
        client = p.client()
        for _ in range(200):
            found = await client.get_group(group["id"])
            if found["state"] == "cancelled":
                break
            await asyncio.sleep(0.1)
        assert found["states"] == {"cancelled": 4}
        why = "cancelled by its group: the time limit of the group, 2 s, is over"
        assert {session["reason"] for session in found["sessions"]} == {why}
        assert (await client.get_group(other["id"]))["state"] == "live"


@pytest.mark.asyncio
async def test_groups_of_others_are_not_there(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        group = (await p.client().submit_group(SESSION, MEMBERS))["id"]
        bob, admin = p.client("bob"), p.client("admin")
        assert await bob.groups() == []
        for ask in (bob.get_group, bob.cancel_group):
            with pytest.raises(NotFound, match=f"there is no group {group}"):
                await ask(group)
        assert [g["id"] for g in await admin.groups()] == [group]
        assert (await admin.cancel_group(group))["state"] == "cancelled"


@pytest.mark.asyncio
async def test_what_cannot_be_a_group_is_refused_whole(tmp_path: Path) -> None:
    async with platform(tmp_path, controller={"max_queued_runs": 3}) as p:
        client = p.client()
        bad = {"notebook": "relative.ipynb"}
        for session, members, more, said in (
            ({"launch": {"mode": "capsule", "argv": ["x"]}}, MEMBERS, {}, "session.run is missing"),
            ({**SESSION, "run": bad}, MEMBERS, {}, "absolute path"),
            (SESSION, [], {}, "at least one"),
            (SESSION, [{"values": {"l r": 1}}], {}, "'l r' cannot be the name of a parameter"),
            (SESSION, [{"values": {}}] * 1001, {}, "1001 is too large"),
            (SESSION, [{"values": {"x": "y" * 3000}}], {}, "at most 2 KiB"),
            (SESSION, MEMBERS, {"max_parallel": 0}, "from 1 to 1000"),
            (SESSION, MEMBERS, {"timeout_s": 0}, "timeout_s must be a whole number of seconds"),
            (SESSION, MEMBERS, {"stop_when": "loss<"}, "a name, a comparison and a number"),
            (SESSION, MEMBERS, {"objective": {"goal": "minimize"}}, "primary_metric"),
            (SESSION, [{"values": {}, "command": "true"}], {}, "the group runs a notebook"),
            (
                {"run": {"command": "true", "folder": "/home/alice"}},
                [{"values": {}}],
                {},
                "has no command of its own",
            ),
        ):
            with pytest.raises(BadRequest, match=said):
                await client.submit_group(session, members, **more)  # type: ignore[arg-type]
        with pytest.raises(Conflict, match="4 more"):
            await client.submit_group(SESSION, MEMBERS)
        assert await client.sessions() == []
        assert await client.groups() == []


@pytest.mark.asyncio
async def test_outputs_and_commands_are_each_members_own(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        client = p.client()
        run = {"notebook": "/home/alice/n.ipynb", "output": "/home/alice/out.ipynb"}
        group = await client.submit_group({"run": run}, MEMBERS[:2])
        outputs = [s["run"]["output"] for s in group["sessions"]]
        assert outputs == ["/home/alice/out-1.ipynb", "/home/alice/out-2.ipynb"]
        run = {"command": "train", "folder": "/home/alice"}
        members = [{"values": {"lr": n}, "command": f"train --lr {n}"} for n in (1, 2)]
        group = await client.submit_group({"run": run}, members)
        assert [s["run"]["command"] for s in group["sessions"]] == ["train --lr 1", "train --lr 2"]


@pytest.mark.asyncio
async def test_what_members_record_is_kept_and_can_end_the_group(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        client = p.client()
        objective = {"primary_metric": "loss", "goal": "minimize"}
        group = await client.submit_group(
            SESSION, MEMBERS, stop_when="loss < 0.1", objective=objective
        )
        first, second, *_ = [s["id"] for s in group["sessions"]]
        assert (group["stop_when"], group["objective"]) == ("loss<0.1", objective)
        assert group["reached"] is None
        p.agent.event(first, "recorded", values={"loss": 0.5, "word": "a"})
        p.agent.event(first, "recorded", values={"loss": 0.4, "long": ["x"] * 100})
        found = await until_recorded(client, group["id"], 0, "long")
        assert found["results"][0]["recorded"] == {"loss": 0.4, "word": "a", "long": ["x"] * 100}
        assert found["best"] == first
        assert (found["values"], found["recorded"]) == (["lr", "seed"], ["loss", "word", "long"])
        await p.stop()
        await p.start()
        await p.ready()
        client = p.client()
        assert (await client.get_session(first))["recorded"]["loss"] == 0.4
        p.agent.event(second, "recorded", values={"loss": 0.05})
        found = await until_recorded(client, group["id"], 1, "loss")
        assert found["reached"] == {"session": second, "reason": "loss is 0.05 in member 2 of 4"}
        assert found["best"] == second
        states = [result["state"] for result in found["results"]]
        assert states[0] == states[2] == states[3] == "cancelled"
        assert states[1] != "cancelled"
        for ask in (p.client("bob").group_results, client.group_results):
            with pytest.raises(NotFound):
                await ask(group["id"] if ask != client.group_results else "0123456789ab")


async def until_recorded(client: ServiceClient, group: str, member: int, name: str) -> Json:
    for _ in range(200):
        found = await client.group_results(group)
        if name in found["results"][member]["recorded"]:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(found)
