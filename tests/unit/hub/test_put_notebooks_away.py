"""The end of `up` with notebooks that live: what is waited for, and what is said of each."""

from __future__ import annotations

import asyncio

import pytest
from singularity_proxy.errors import Unavailable
from singularity_spawner.platform import hibernate
from singularity_spawner.platform.hibernate import put_notebooks_away, say

pytestmark = pytest.mark.asyncio


class Service:
    """Knows a notebook and a run of ada's; hibernating ends as `does` says. It does not answer the
    first `away` times."""

    def __init__(self, does=None, away=0):
        self.does = does
        self.away = away
        self.asked = []
        self.revived = 0
        self.state = "live"
        self.checkpoint = None

    def operator(self):
        return self

    async def revive_service(self):
        self.revived += 1

    async def sessions(self, which):
        if self.away:
            self.away -= 1
            raise Unavailable("the scheduler does not answer")
        common = {"user": "ada", "reason": "the store is full", "last_checkpoint": self.checkpoint}
        return [
            {**common, "id": "n1", "kind": "interactive", "process_state": self.state},
            {**common, "id": "b1", "kind": "batch", "process_state": "live"},
        ]

    async def hibernate(self, user, wait_s):
        self.asked.append(user)
        stored = {"suspended": [], "suspending": [], "kept": []}
        return stored | (await self.does(self) or {})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(hibernate, "RETRY_S", 0.0)
    monkeypatch.setattr(hibernate, "PAUSE_S", 0.0)


async def stores(service):
    service.state = "suspended"


async def put_away(service, hurry=None):
    async with asyncio.timeout(10):
        await put_notebooks_away(service, hurry or asyncio.Event())
    return service


async def test_what_is_stored_waits_for_the_next_start(capsys):
    assert (await put_away(Service(stores))).asked == ["ada"]
    out, err = capsys.readouterr()
    assert "Suspending 1 notebook; Ctrl-C again" in out
    assert "1 notebook waits in the store for the next start." in out
    assert err == ""


async def test_a_second_signal_does_not_wait_and_says_what_ends(capsys):
    hurry = asyncio.Event()

    async def hangs(_):
        hurry.set()
        await asyncio.sleep(3600)

    await put_away(Service(hangs), hurry)
    assert capsys.readouterr().err == (
        "Session n1 of ada ends with the platform: the store is full\n"
    )


@pytest.mark.parametrize(
    ("state", "checkpoint", "told"),
    [
        ("resuming", None, "was on its way back and stays in the store for the next start"),
        (
            "suspending",
            None,
            "is not whole in the store yet, so it ends with the platform; nothing of it is stored",
        ),
        (
            "suspending",
            {"id": "c7", "name": "noon"},
            "is not whole in the store yet, so it ends with the platform; its checkpoint noon is "
            "kept",
        ),
        ("live", {"id": "c7", "name": ""}, "ends with the platform; its checkpoint c7 is kept"),
        ("starting", None, "ends with the platform"),
    ],
)
async def test_what_is_said_of_one_that_is_not_in_the_store(state, checkpoint, told, capsys):
    async def hangs(service):
        service.state, service.checkpoint = state, checkpoint
        hurry.set()
        await asyncio.sleep(3600)

    hurry = asyncio.Event()
    await put_away(Service(hangs), hurry)
    assert capsys.readouterr().err == f"Session n1 of ada {told}: the store is full\n"


async def test_a_scheduler_that_is_just_started_again_is_waited_for(capsys):
    service = await put_away(Service(stores, away=3))
    assert service.revived == 3
    assert "1 notebook waits in the store for the next start." in capsys.readouterr().out


async def test_a_scheduler_that_is_killed_while_it_stores_is_asked_again(capsys):
    async def dies_once(service):
        if len(service.asked) == 1:
            service.away = 2
            raise Unavailable("the connection broke")
        service.state = "suspended"

    assert (await put_away(Service(dies_once))).asked == ["ada", "ada"]
    out, err = capsys.readouterr()
    assert out.count("Suspending 1 notebook") == 1
    assert "1 notebook waits in the store for the next start." in out
    assert err == ""


@pytest.mark.parametrize(("possible", "times"), [(True, hibernate.TRIES), (False, 1)])
async def test_what_may_still_be_stored_is_tried_again(possible, times, capsys):
    async def keeps(_):
        kept = {"session": "n1", "reason": "node local is not connected", "possible": possible}
        return {"kept": [kept]}

    assert (await put_away(Service(keeps))).asked == ["ada"] * times
    assert "Session n1 of ada ends with the platform" in capsys.readouterr().err


async def test_without_a_scheduler_nobody_knows(monkeypatch):
    monkeypatch.setattr(hibernate, "HIBERNATE_S", 0.0)
    with pytest.raises(Unavailable, match="does not answer"):
        await put_away(Service(away=10**6))


async def test_a_terminal_that_is_gone_is_no_error(monkeypatch):
    class Gone:
        def write(self, _):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("sys.stdout", Gone())
    say("nobody reads this")


class Busy:
    """A service whose notebooks begin while others are put away. `later`: what happens after each
    answer, state by id; a notebook that is live when it is asked for is stored."""

    def __init__(self, *later):
        self.later = list(later)
        self.states = {"n1": "live"}

    def operator(self):
        return self

    async def sessions(self, which):
        common = {"kind": "interactive", "user": "ada", "reason": "it waits for a device"}
        return [{**common, "id": id, "process_state": state} for id, state in self.states.items()]

    async def hibernate(self, user, wait_s):
        stored = [id for id, state in self.states.items() if state == "live"]
        self.states |= dict.fromkeys(stored, "suspended")
        if self.later:
            self.states |= self.later.pop(0)
        return {"suspended": stored, "suspending": [], "kept": []}


@pytest.mark.parametrize(
    "later",
    [
        [{"n2": "live"}],
        [{"n2": "starting"}, {}, {"n2": "live"}],
        [{"n2": "live"}, {"n3": "starting"}, {"n3": "live"}],
        [{"n1": "live"}],
        [{"n2": "queued"}, {"n2": "live"}],
    ],
    ids=["begins", "starts slowly", "one after another", "is called back", "gets room"],
)
async def test_what_begins_while_others_are_stored_is_stored_too(later, capsys):
    service = await put_away(Busy(*later))
    assert set(service.states.values()) == {"suspended"}
    out, err = capsys.readouterr()
    assert out.count("Suspending 1 notebook") == 1
    assert f"{len(service.states)} notebook" in out
    assert err == ""


async def test_one_that_has_no_room_is_not_waited_for(capsys):
    service = await put_away(Busy({"n2": "queued"}))
    assert service.states == {"n1": "suspended", "n2": "queued"}
    assert capsys.readouterr().err == (
        "Session n2 of ada ends with the platform: it waits for a device\n"
    )


async def test_one_that_never_gets_ready_is_waited_for_as_long_as_stopping_has(monkeypatch, capsys):
    monkeypatch.setattr(hibernate, "HIBERNATE_S", 0.2)
    await put_away(Busy({"n2": "starting"}))
    assert "Session n2 of ada ends with the platform" in capsys.readouterr().err
