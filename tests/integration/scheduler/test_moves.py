"""Whole sessions over the API: two agents of paper, one store between them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    DamagedCheckpoint,
    Forbidden,
    ImageFailed,
    NoSpace,
    NotFound,
    SingularityError,
    StoreUnavailable,
    Unavailable,
    Unsupported,
)
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.service.nodes import transfers
from support.scheduler_service import LAUNCH, Platform, platform, until
from tornado.httpclient import AsyncHTTPClient

NODES = ("node-1", "node-2")


def two(tmp_path: Path, **settings: Any) -> Any:
    return platform(tmp_path, nodes=NODES, **settings)


async def on(p: Platform, session: str, node: str, word: str) -> None:
    await p.state(session, word)
    assert (await p.controller.find(session)).node == node


async def elsewhere(p: Platform, session: str) -> str:
    here = (await p.controller.find(session)).node
    return next(n for n in NODES if n != here)


async def need(p: Platform, session: str) -> None:
    p.agents[(await p.controller.find(session)).node].need(session)


class OneByOne(dict[str, Any]):
    """Refusals of an agent: each next call of a method gets the next of its errors."""

    def pop(self, method: str, *_: object) -> Any:
        left = self.get(method)
        return left.pop(0) if left else None


@pytest.mark.asyncio
async def test_suspend_and_resume(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        client = p.client()
        session = await p.holder(name="a")
        done = await client.suspend(session, "before lunch")
        assert (done["state"], done["devices"], done["checkpoints"]) == ("suspended", [], 1)
        assert done["last_checkpoint"]["name"] == "before lunch"
        assert session not in p.agent.sessions
        [listed] = await client.checkpoints(session)
        assert listed == done["last_checkpoint"]
        assert (listed["level"], listed["restorable"]) == ("process", True)
        with pytest.raises(Conflict, match="is suspended already: resume brings it back"):
            await client.suspend(session)
        back = await client.resume(session)
        assert (back["state"], back["node"], back["incarnation"]) == ("running", "node-1", 1)
        assert back["loss"]["hashes_checked"] == 12
        assert back["loss"]["rolled_back"] is False
        history = [c["state"] for c in await client.history(session)]
        assert history[-8:] == [
            *("suspending", "suspended", "suspended", "resuming"),
            *("parked", "waiting", "attaching", "running"),
        ]
        resume = next(c for m, c in p.agent.calls if m == "session.resume")
        assert resume["connection"] == {"tunnel": {"secret": "of incarnation 1"}}
        assert (resume["from_session"], resume["user"]) == (session, "alice")
        assert resume["epoch"] > 1


@pytest.mark.asyncio
async def test_a_request_of_its_notebook_brings_it_back(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        session = await p.kernel()
        home = (await p.controller.find(session)).node
        away = await elsewhere(p, session)
        await p.client().migrate(session, node=away)
        await on(p, session, away, "ready")
        await p.client().suspend(session)
        # Its relay is still where its server is, and only that node may say so.
        p.agents[home].event(session, "session.wanted")
        await on(p, session, away, "ready")


@pytest.mark.asyncio
async def test_migrate_to_a_node_and_what_is_refused(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        client = p.client()
        session = await p.holder(name="a")
        away = await elsewhere(p, session)
        with pytest.raises(NotFound, match="there is no node 'node-9': did you mean 'node-"):
            await client.migrate(session, node="node-9")
        with pytest.raises(BadRequest, match="not two of them"):
            await client.migrate(session, "cpu:1", node=away)
        moved = await client.migrate(session, node=away)
        assert (moved["node"], moved["state"], moved["incarnation"]) == (away, "running", 1)
        assert moved["reason"].startswith("came back on cpu:")
        reasons = [c["reason"] for c in await client.history(session)]
        assert any("moving to node" in r and "nothing is lost" in r for r in reasons)
        p.agents[away].refuse["session.suspend"] = NoSpace("the disk is full; nothing was stored")
        with pytest.raises(NoSpace, match="the disk is full"):
            await client.suspend(session)
        goes_on = await client.get_session(session)
        assert goes_on["state"] == "running"
        assert goes_on["reason"] == (
            "could not be suspended, so it goes on as it was (the disk is full; nothing was stored)"
        )


@pytest.mark.asyncio
async def test_checkpoints_restore_and_fork(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        client = p.client()
        session = await p.holder(name="a")
        stored = await client.checkpoint(session, "before fine tuning")
        good = stored["last_checkpoint"]
        assert (good["name"], good["level"]) == ("before fine tuning", "process")
        assert (await client.checkpoint(session, "weights", "device"))["last_checkpoint"][
            "level"
        ] == "device"
        with pytest.raises(NotFound, match="did you mean 'before fine tuning'"):
            await client.restore(session, "before finetuning")
        undone = await client.restore(session, "before fine tuning")
        assert (undone["state"], undone["incarnation"]) == ("running", 2)
        assert undone["loss"]["rolled_back"] is True
        assert undone["loss"]["checkpoint"] == good["id"]
        fork = await client.fork(session, "before fine tuning", "variant")
        assert fork["id"] != session
        assert (fork["name"], fork["forked_from"], fork["user"]) == ("variant", session, "alice")
        resumes = [c for m, c in p.agent.calls if m == "session.resume"]
        others = [c for m, c in p.agents["node-2"].calls if m == "session.resume"]
        [forked] = [c for c in (*resumes, *others) if c["session"] == fork["id"]]
        assert (forked["from_session"], forked["checkpoint"]) == (session, good["id"])
        assert forked["connection"] is None, "a fork gets a connection of its own"
        left = await client.delete_checkpoint(session, "before fine tuning")
        assert good["id"] not in [c["id"] for c in left]
        await until(lambda: (session, good["id"]) not in p.store.checkpoints, "deleted")
        with pytest.raises(NotFound):
            await client.delete_checkpoint(session, "before fine tuning")


@pytest.mark.parametrize(("discard", "method"), [(False, "session.suspend"), (True, "session.end")])
@pytest.mark.asyncio
async def test_a_return_that_cannot_be_is_refused_before_the_session_leaves(
    discard: bool, method: str, tmp_path: Path
) -> None:
    async with two(tmp_path) as p:
        client = p.client()
        session = await p.holder(name="a")
        good = (await client.checkpoint(session, "good"))["last_checkpoint"]
        agent = p.agents[(await p.controller.find(session)).node]
        agent.refuse[method] = Conflict("another program listens on 127.0.0.1:8888")
        with pytest.raises(Conflict, match="another program listens"):
            await client.restore(session, "good", discard=discard)
        [asked] = [c for m, c in agent.calls if m == method]
        assert asked["back_to"] == good["id"]
        goes_on = await client.get_session(session)
        assert (goes_on["state"], goes_on["incarnation"]) == ("running", 1)
        assert session in agent.sessions
        back = await client.restore(session, "good", discard=discard)
        assert (back["state"], back["incarnation"]) == ("running", 2)
        await client.suspend(session)
        [*_, asked] = [c for a in p.agents.values() for m, c in a.calls if m == "session.suspend"]
        assert "back_to" not in asked, "it is on its way nowhere"


@pytest.mark.parametrize(("discard", "method"), [(False, "session.suspend"), (True, "session.end")])
@pytest.mark.asyncio
async def test_a_checkpoint_that_is_found_damaged_before_the_session_leaves_is_marked(
    discard: bool, method: str, tmp_path: Path
) -> None:
    async with two(tmp_path) as p:
        client = p.client()
        session = await p.holder(name="a")
        await client.checkpoint(session, "older")
        await client.checkpoint(session, "newer")
        agent = p.agents[(await p.controller.find(session)).node]
        why = "checkpoint k0002 is damaged in image/pages-1.img: it is missing"
        agent.refuse[method] = DamagedCheckpoint(why)
        with pytest.raises(DamagedCheckpoint, match="it is missing"):
            await client.restore(session, "newer", discard=discard)
        goes_on = await client.get_session(session)
        assert (goes_on["state"], goes_on["incarnation"]) == ("running", 1)
        known = {c["name"]: c for c in await client.checkpoints(session)}
        assert known["newer"]["damaged"] == why
        assert [name for name, c in known.items() if c["restorable"]] == ["older"]
        with pytest.raises(Conflict, match="'older'"):
            await client.restore(session, "newer")
        back = await client.restore(session, "older")
        assert (back["state"], back["incarnation"]) == ("running", 2)


@pytest.mark.asyncio
async def test_of_two_returns_at_once_one_is_done_and_the_other_refused(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        client = p.client()
        session = await p.holder(name="a")
        for name in ("one", "two"):
            await client.checkpoint(session, name)
        told = await asyncio.gather(
            *(client.restore(session, name) for name in ("one", "two")), return_exceptions=True
        )
        [back] = [one for one in told if isinstance(one, dict)]
        [refused] = [one for one in told if not isinstance(one, dict)]
        assert isinstance(refused, Conflict)
        assert refused.message.startswith("alice/a is ")
        assert "\n" not in refused.message
        assert (back["state"], back["incarnation"]) == ("running", 2)
        calls = [c for agent in p.agents.values() for m, c in agent.calls if m == "session.resume"]
        assert len(calls) == 1, "nothing came back twice"
        now = await client.get_session(session)
        assert (now["state"], now["incarnation"]) == ("running", 2)


@pytest.mark.asyncio
async def test_device_state_goes_back_into_a_session_that_lives(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        client = p.client()
        session = await p.holder(name="a")
        await client.checkpoint(session, "weights", "device")
        back = await client.restore(session, "weights")
        assert (back["state"], back["incarnation"]) == ("running", 1)
        assert (back["loss"]["level"], back["loss"]["rolled_back"]) == ("device", False)
        assert "the device state of checkpoint 'weights' is back: the contents of" in back["reason"]
        known = await client.checkpoints(session)
        assert [(c["name"], c["level"]) for c in known] == [("", "device"), ("weights", "device")]
        await client.restore(session, "weights", discard=True)
        assert len(await client.checkpoints(session)) == len(known)
        p.agent.refuse["device.put_back"] = Conflict("it waits for a device")
        p.agents["node-2"].refuse["device.put_back"] = Conflict("it waits for a device")
        with pytest.raises(Conflict, match="it waits for a device"):
            await client.restore(session, "weights")
        goes_on = await client.get_session(session)
        assert goes_on["state"] == "running"
        assert "was not put back, so it goes on as it was (it waits" in goes_on["reason"]
        await client.suspend(session)
        with pytest.raises(Conflict, match="holds device state alone"):
            await client.restore(session, "weights")


@pytest.mark.asyncio
async def test_a_checkpoint_by_itself_that_fails_is_nobody_elses_error(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        client = p.client()
        session = await p.holder(name="a")
        for agent in p.agents.values():
            agent.refuse["session.checkpoint"] = Conflict("it was cancelled by a move")
        asked = ev.CheckpointAsked(
            session, "the scheduler", due=because("checkpoint_due", steps=None, seconds=60.0)
        )
        done = await p.controller.submit(asked)
        await asyncio.gather(*done.tasks.values(), return_exceptions=True)
        away = (await client.suspend(session))["state"]
        assert away == "suspended"


@pytest.mark.asyncio
async def test_what_passes_keeps_no_session_from_coming_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "AGAIN_S", (0.0,) * 3)
    async with two(tmp_path) as p:
        client = p.client()
        session = await p.holder(name="a")
        away = await client.suspend(session)

        def failing(*errors: SingularityError) -> None:
            """Each next resume that a node is asked for fails with one of these."""
            left = list(errors)
            for agent in p.agents.values():
                agent.refuse = OneByOne({"session.resume": left})

        gone = StoreUnavailable("the store does not answer")
        failing(gone, Unavailable("the restore was itself killed"), gone)
        assert (await client.resume(session))["process_state"] == "live"
        await client.suspend(session)
        failing(gone, gone, gone, gone)
        with pytest.raises(StoreUnavailable):
            await client.resume(session)
        stays = await client.get_session(session)
        assert stays["state"] == away["state"] == "suspended"
        assert "so it stays suspended and nothing more is lost" in stays["reason"]
        failing(ImageFailed("the process image could not be restored", step="restore", log=[]))
        with pytest.raises(ImageFailed):
            await client.resume(session)
        failing()
        assert (await client.resume(session))["process_state"] == "live"


@pytest.mark.asyncio
async def test_named_checkpoints_outlive_their_session(tmp_path: Path) -> None:
    async with two(tmp_path, controller={"undo_end_s": 0.0}) as p:
        client = p.client()
        session = await p.holder(name="a")
        await client.checkpoint(session, "kept")
        await client.checkpoint(session)
        await client.end_session(session)
        assert [c["name"] for c in await client.checkpoints(session)] == ["kept"]
        await until(lambda: len(p.store.checkpoints) == 1, "the one without a name is deleted")
        fork = await client.fork(session, "kept")
        assert fork["state"] in ("ready", "parked")
        assert await client.delete_checkpoint(session, "kept") == []
        await until(lambda: not p.store.checkpoints, "deleted")


@pytest.mark.asyncio
async def test_only_own_sessions_and_only_what_a_node_can_do(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        session = await p.holder(name="a")
        await p.client().checkpoint(session, "x")
        bob = p.client("bob")
        asked: list[Any] = [
            *(bob.suspend(session), bob.resume(session), bob.restore(session, "x")),
            *(bob.fork(session, "x"), bob.checkpoints(session)),
            bob.delete_checkpoint(session, "x"),
        ]
        for one in asked:
            with pytest.raises(NotFound, match="there is no session"):
                await one
    async with platform(tmp_path / "old") as p:  # an agent that knows nothing of it
        session = await p.holder(name="a")
        sentence = r"node local cannot store the image of a process \(its node agent does not know"
        for call in (
            p.client().suspend(session),
            p.client().checkpoint(session, level="process"),
        ):
            with pytest.raises(Unsupported, match=sentence):
                await call
        stored = await p.client().checkpoint(session, "best")
        assert stored["last_checkpoint"]["id"] == "c-best"
        assert (await p.client().get_session(session))["state"] == "running"


@pytest.mark.asyncio
async def test_progress_reaches_document_and_stream(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        client = p.client()
        session = await p.holder(name="a")
        heard: list[dict[str, Any]] = []
        listens = asyncio.Event()

        async def listen() -> None:
            async for event in client.events():
                listens.set()
                if event["event"] == "progress":
                    heard.append(event["data"])

        listening = asyncio.ensure_future(listen())
        await asyncio.wait_for(listens.wait(), 60)
        gate = p.agent.hold["session.suspend"] = asyncio.Event()
        leaving = asyncio.ensure_future(client.suspend(session))
        await p.state(session, "suspending")
        p.agent.event(
            session,
            "checkpoint.progress",
            bytes_done=512,
            bytes_total=1024,
            bytes_sent=100,
            rate=256.0,
            eta_s=2.0,
        )
        wanted = {
            "bytes_done": 512,
            "bytes_total": 1024,
            "bytes_sent": 100,
            "rate": 256.0,
            "eta_s": 2.0,
        }
        await until(lambda: bool(heard), "told")
        assert heard[0] == {"session": session, "progress": wanted}
        assert (await client.get_session(session))["progress"] == wanted
        [listed] = await client.sessions("active")
        assert listed["progress"] == wanted
        gate.set()
        assert (await leaving)["progress"] is None
        await until(lambda: heard[-1]["progress"] is None, "over")
        listening.cancel()


@pytest.mark.asyncio
async def test_a_dead_node_costs_what_was_since_the_checkpoint(tmp_path: Path) -> None:
    leases = {"lease_ttl_s": 1.0, "lease_margin_s": 0.2, "lost_patience_s": 0.5}
    async with two(tmp_path, controller=leases) as p:
        client = p.client()
        stored, bare = await p.holder(name="stored"), ""
        while not bare:  # one without a checkpoint on the same node
            other = await p.kernel(name="bare")
            same = (await p.controller.find(other)).node == p.agent.node
            bare = other if same else ""
        await client.checkpoint(stored, "good")
        old = dict(p.agent.sessions)
        # Its agent had published one more before it could tell.
        view = await p.controller.find(stored)
        late = p.store.save(stored, view.epoch, name="late")
        await p.agent.stop()
        await until(
            lambda: (
                p.controller.state.sessions[stored].node == "node-2"
                and p.controller.state.sessions[stored].process_state.value == "live"
            ),
            "started elsewhere",
        )
        document = await client.get_session(stored)
        assert document["incarnation"] == 2
        assert document["loss"]["checkpoint"] == late["id"]
        reasons = [c["reason"] for c in await client.history(stored)]
        assert any("node node-1 has been gone for" in r and "'late'" in r for r in reasons)
        await until(lambda: p.controller.state.sessions[bare].lost, "it waits for its node")
        waits = await client.get_session(bare)
        assert waits["process_state"] == "live"
        assert "it goes on as it was when the node is back" in waits["reason"]
        # The store refuses what the old node still publishes, and its agent is told to end it.
        with pytest.raises(SingularityError, match="has moved on to epoch"):
            p.store.save(stored, view.epoch)
        p.agent.sessions = old
        await p.agent.start()
        await until(lambda: stored not in p.agent.sessions, "fenced")
        await until(lambda: not p.controller.state.sessions[bare].lost, "nothing is lost")
        assert list(p.agent.sessions) == [bare]
        ends = [c for m, c in p.agent.calls if m == "session.end" and c["session"] == stored]
        assert ends[-1]["keep"] is True
        assert (await client.get_session(stored))["node"] == "node-2"


@pytest.mark.asyncio
async def test_an_agent_that_slept_past_its_lease_is_fenced_when_it_wakes(tmp_path: Path) -> None:
    leases = {"lease_ttl_s": 1.0, "lease_margin_s": 0.2}
    async with two(tmp_path, controller=leases) as p:
        session = await p.holder(name="a")
        await p.client().checkpoint(session, "good")
        asleep = asyncio.Event()
        p.agent.hold = dict.fromkeys(("renew", "hello", "session.end"), asleep)
        await until(
            lambda: p.controller.state.sessions[session].node == "node-2", "started elsewhere"
        )
        p.agent.hold = {}
        asleep.set()
        await until(lambda: session not in p.agent.sessions, "fenced")
        await until(lambda: p.controller.state.node("node-1").connected, "it is back")


@pytest.mark.asyncio
async def test_checkpoints_by_time_and_by_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from singularity_scheduler.service.nodes import store

    monkeypatch.setattr(store, "LOOK_S", 0.05)
    async with two(tmp_path, controller={"keep_checkpoints": 2}) as p:
        client = p.client()
        by_steps = await client.create_session(
            kind="interactive", launch=LAUNCH, name="s", checkpoint_every_steps=100
        )
        session = by_steps["id"]
        agent = p.agents[by_steps["node"]]
        agent.busy(session, True)
        for count in (1, 60, 100):
            agent.event(session, "steps", count=count)
        await asyncio.sleep(0.3)
        assert not p.store.checkpoints
        agent.event(session, "steps", count=101)
        await until(lambda: len(p.store.checkpoints) == 1, "stored after 100 steps")
        agent.event(session, "steps", count=150)
        await asyncio.sleep(0.3)
        assert len(p.store.checkpoints) == 1
        by_time = await client.create_session(
            kind="interactive", launch=LAUNCH, name="t", checkpoint_every_s=0.2
        )
        p.agents[by_time["node"]].busy(by_time["id"], True)
        mine = lambda: [k for k in p.store.checkpoints if k[0] == by_time["id"]]  # noqa: E731
        await until(lambda: len(mine()) >= 2, "stored again and again")


@pytest.mark.asyncio
async def test_a_server_that_stops_and_starts(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        server = p.client("server")
        first = await server.create_session(
            kind="interactive", launch=LAUNCH, name="one", kernel_id="1f0c-aa"
        )
        other = await p.kernel(name="elsewhere")
        done = await server.hibernate("alice", "big")
        assert done == {"suspended": [first["id"]], "suspending": [], "kept": []}
        assert (await server.get_session(other))["state"] == "ready"
        [found] = await server.suspended("alice", "big")
        assert (found["kernel_id"], found["session"]["id"]) == ("1f0c-aa", first["id"])
        assert found["connection"] == {"shell_port": 5001, "key": "connection-secret"}
        assert found["session"]["reason"].startswith("everything of it is in checkpoint")
        assert await server.connection(first["id"]) == found["connection"]
        with pytest.raises(Forbidden, match="only the user of a session"):
            await p.client("admin").connection(first["id"])
        with pytest.raises(NotFound):
            await p.client("bob").connection(first["id"])
        [seen] = await p.client("admin").suspended("alice")
        assert seen["connection"] is None, "the key is the user's alone"
        with pytest.raises(Forbidden):
            await p.client("bob").suspended("alice")
        with pytest.raises(Forbidden):
            await p.client("bob").hibernate("alice")
        everything = b"".join(f.read_bytes() for f in (tmp_path / "state").iterdir())
        assert b"connection-secret" not in everything
        back = await server.resume(first["id"])
        assert back["state"] == "ready"
        assert await server.suspended("alice", "big") == []
        [found] = await server.suspended("alice", "big", live=True)
        assert (found["session"]["id"], found["kernel_id"]) == (first["id"], "1f0c-aa")
        assert (await server.own(first["id"], 77))["id"] == first["id"]
        owned = [params for a in p.agents.values() for m, params in a.calls if m == "session.own"]
        assert [(o["session"], o["owner_pid"]) for o in owned] == [(first["id"], 77)]
        with pytest.raises(NotFound):
            await p.client("bob").own(first["id"], 77)


@pytest.mark.asyncio
async def test_a_server_whose_node_cannot_store_processes(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await p.kernel(name="one")
        [kept] = (await p.client("admin").hibernate("alice"))["kept"]
        assert (kept["session"], kept["possible"]) == (session, False)
        assert "cannot store the image of a process" in kept["reason"]
        assert (await p.client().get_session(session))["state"] == "ready"


@pytest.mark.asyncio
async def test_a_server_stops_while_its_notebooks_come_back(tmp_path: Path) -> None:
    async with two(tmp_path, controller={"settle_s": 0.1}) as p:
        coming = await p.kernel(name="coming")
        done = await p.client().hibernate("alice", wait_s=20.0)
        assert done["suspended"] == [coming]
        gates = {}
        for agent in p.agents.values():
            gates[agent.node] = agent.hold["session.resume"] = asyncio.Event()
        assert (await p.client().resume(coming))["state"] == "resuming"
        hibernated = asyncio.create_task(p.client().hibernate("alice", wait_s=20.0))
        await asyncio.sleep(0.3)
        assert not hibernated.done(), "it waits until it can be suspended"
        for gate in gates.values():
            gate.set()
        done = await hibernated
        assert (done["suspended"], done["suspending"], done["kept"]) == ([coming], [], [])
        assert (await p.client().get_session(coming))["state"] == "suspended"


@pytest.mark.asyncio
async def test_a_server_stops_while_a_page_calls_its_notebooks(tmp_path: Path) -> None:
    async with two(tmp_path, controller={"settle_s": 0.1}) as p:
        session = await p.kernel(name="one")
        agent = p.agents[(await p.controller.find(session)).node]
        gate = agent.hold["session.suspend"] = asyncio.Event()
        stopping = asyncio.create_task(p.client().hibernate("alice", wait_s=20.0))
        await p.state(session, "suspending")
        agent.event(session, "session.wanted")
        await until(lambda: p.controller.state.sessions[session].called, "called back")
        gate.set()
        [kept] = (await stopping)[
            "kept"
        ]  # it is not waited for while pages call it again and again
        assert (kept["session"], kept["possible"]) == (session, True)
        assert (await p.client().hibernate("alice", wait_s=20.0))["suspended"] == [session]
        for agent in p.agents.values():  # then there is no room for it
            await agent.stop()
        await until(lambda: not any(n.connected for n in p.controller.state.nodes.values()), "away")
        assert (await p.client().resume(session))["called_back"]
        assert (await p.client().hibernate("alice"))["suspended"] == [session]
        assert not (await p.client().get_session(session))["called_back"]


@pytest.mark.asyncio
async def test_a_stop_waits_as_long_as_it_was_told(tmp_path: Path) -> None:
    async with two(tmp_path, controller={"settle_s": 0.1}) as p:
        session = await p.kernel(name="one")
        gates = [asyncio.Event() for _ in p.agents]
        for agent, gate in zip(p.agents.values(), gates, strict=True):
            agent.hold["session.suspend"] = gate
        nothing = {"suspended": [], "kept": []}
        for wait_s in (None, 0.0, 0.2):
            done = await p.client().hibernate("alice", wait_s=wait_s)
            assert done == {**nothing, "suspending": [session]}
        hibernated = asyncio.create_task(p.client().hibernate("alice", wait_s=20.0))
        await asyncio.sleep(0.5)
        for gate in gates:
            gate.set()
        assert (await hibernated)["suspended"] == [session]


@pytest.mark.asyncio
async def test_the_service_goes_on_with_a_move_after_a_restart(tmp_path: Path) -> None:
    async with two(tmp_path, controller={"settle_s": 0.1}) as p:
        session = await p.holder(name="a")
        await p.client().checkpoint(session, "kept")
        gate = p.agent.hold["session.suspend"] = asyncio.Event()
        moving = await p.client().migrate(session, node="node-2")
        assert moving["state"] == "migrating"
        await p.stop()
        gate.set()
        del p.agent.hold["session.suspend"]
        await p.start()
        await p.ready()
        await on(p, session, "node-2", "running")
        names = [c["name"] for c in await p.client().checkpoints(session)]
        assert names == ["", "kept"]
        assert [m for m, _ in p.agent.carried_out].count("session.suspend") == 1


@pytest.mark.asyncio
async def test_magics_ask_for_themselves_alone(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        session = await p.holder(name="a")
        await p.agent.command(session, "checkpoint", name="good")
        [listed] = await p.agent.command(session, "checkpoints")
        assert listed["name"] == "good"
        fork = await p.agent.command(session, "fork", checkpoint="good", name="b")
        assert fork["forked_from"] == session
        undone = await p.agent.command(session, "restore", checkpoint="good")
        assert undone["incarnation"] == 2


@pytest.mark.asyncio
async def test_fork_may_be_repeated_with_its_key(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        session = await p.holder(name="a")
        await p.client().checkpoint(session, "good")
        answers = []
        for _ in range(2):
            answer = await AsyncHTTPClient().fetch(
                f"{p.url}api/v1/sessions/{session}/fork",
                method="POST",
                headers={"Authorization": "token alice-token", "Idempotency-Key": "k1"},
                body=json.dumps({"checkpoint": "good"}),
            )
            assert answer.code == 201
            answers.append(json.loads(answer.body)["id"])
            assert answer.headers["Location"].endswith(f"/sessions/{answers[-1]}")
        assert answers[0] == answers[1]


@pytest.mark.asyncio
async def test_a_suspend_whose_answer_was_lost_is_found_in_the_store(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        session = await p.holder(name="a")
        gate = p.agent.hold["session.suspend"] = asyncio.Event()
        leaving = asyncio.ensure_future(p.client().suspend(session))
        await p.state(session, "suspending")
        # The agent publishes, is killed before it can answer, and its successor knows nothing.
        view = await p.controller.find(session)
        published = p.store.save(session, view.epoch)
        del p.agent.sessions[session]
        await p.agent.stop()
        gate.set()
        del p.agent.hold["session.suspend"]
        await p.agent.start()
        done = await leaving
        assert done["state"] == "suspended"
        assert done["last_checkpoint"]["id"] == published["id"]


@pytest.mark.asyncio
async def test_what_an_agent_forgot_goes_on_from_what_the_store_has(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        session = await p.holder(name="a")
        late = p.store.save(session, (await p.controller.find(session)).epoch)
        await p.agent.stop()
        p.agent.sessions.clear()
        await p.agent.start()
        await until(
            lambda: (
                p.controller.state.sessions[session].incarnation == 2
                and p.controller.state.sessions[session].here
            ),
            "it goes on",
        )
        document = await p.client().get_session(session)
        assert document["loss"]["checkpoint"] == late["id"]


@pytest.mark.asyncio
async def test_moves_are_measured(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        session = await p.holder(name="a")
        await p.client().suspend(session)
        await p.client().resume(session)
        text = p.services.metrics.text().decode()
        for name in ("suspend", "resume"):
            assert f"singularity_{name}_duration_seconds_count 1.0" in text
            assert f'action="{name}"' in text


@pytest.mark.asyncio
@pytest.mark.parametrize("verb", ["checkpoint", "suspend", "park", "restore", "signal"])
async def test_a_session_that_its_node_has_lost_says_what_became_of_it(
    tmp_path: Path, verb: str
) -> None:
    """A verb may be the first to find out: the agent's bare answer is nobody's sentence."""
    async with platform(tmp_path, nodes=("node-1",)) as p:
        client, words = p.client(), {"restore": ("safe",), "signal": (2,)}
        kept, gone = await p.holder(name="a"), await p.holder(name="b")
        await client.checkpoint(kept, "safe")
        if verb == "restore":
            p.agent.image_trouble = "no images here"
            await client.checkpoint(gone, "safe")
            p.agent.image_trouble = ""
        for session, fate in ((kept, "goes on from checkpoint 'safe'"), (gone, "is gone")):
            del p.agent.sessions[session]
            with pytest.raises(Conflict) as caught:
                await getattr(client, verb)(session, *words.get(verb, ()))
            label = (await p.controller.find(session)).label
            first, _, rest = caught.value.message.partition(": ")
            assert first == f"node node-1 has nothing of {label} any more, so this was not done"
            assert fate in rest
        assert (await client.get_session(gone))["process_state"] == "failed"
