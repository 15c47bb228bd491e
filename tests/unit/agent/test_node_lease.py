"""The lease of a node, and what the service may make of its silence."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from singularity_proxy.capsule.lease_word import LeaseWord
from singularity_proxy.errors import BadRequest, NoSpace, Unavailable
from singularity_scheduler.agent.rights.leases import boot_clock
from singularity_scheduler.agent.rights.node_lease import LeaseKeeper, NodeLease, Renewal
from singularity_scheduler.agent.sessions.record import Life, SessionRecord
from singularity_scheduler.service.leadership.node_terms import NodeTerms


def test_without_a_service_there_is_no_end() -> None:
    lease = NodeLease()
    assert not lease.over(1e9)
    assert lease.end is None


def test_it_runs_from_what_the_service_has_got() -> None:
    lease = NodeLease()
    assert lease.renew(100.0, 30.0, 105.0)
    assert not lease.over(129.9)
    assert lease.over(130.0)
    assert lease.renew(120.0, 30.0, 131.0)
    assert not lease.over(149.0)


def test_what_lay_in_a_buffer_prolongs_nothing() -> None:
    lease = NodeLease()
    lease.renew(100.0, 30.0, 105.0)
    assert not lease.renew(95.0, 30.0, 200.0)
    assert not lease.renew(100.0, 30.0, 200.0)
    assert not lease.renew(300.0, 30.0, 200.0)  # of another boot
    assert lease.over(200.0)


def test_another_node_has_come_so_it_ends_sooner() -> None:
    lease = NodeLease()
    lease.renew(100.0, 330.0, 105.0)
    assert lease.renew(105.0, 30.0, 110.0)
    assert lease.end == 135.0


@pytest.mark.parametrize(
    "told",
    [{}, {"got": "x", "after_s": 1.0, "here": {}}, {"got": 1.0, "after_s": 1.0, "here": []}],
)
def test_what_is_no_renewal_is_refused(told: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        Renewal.parse(told)


def test_an_older_epoch_of_a_session_is_not_the_session() -> None:
    renewal = Renewal.parse({"got": 1.0, "after_s": 1.0, "here": {"a": 0, "b": 7}})
    assert renewal.names("a", 0)
    assert renewal.names("b", 7)
    assert not renewal.names("b", 6)
    assert not renewal.names("c", 9)


@pytest.mark.parametrize("seed", range(200))
def test_nobody_starts_elsewhere_what_may_still_run(seed: int) -> None:
    """Renewals and answers are delayed and lost, other nodes come and go: whenever the service
    would start the node's sessions elsewhere, the node's lease is over."""
    chance = random.Random(seed)
    ttl, patience, margin = 30.0, 100.0, 1.0
    shift = chance.uniform(-500, 500)  # the node's clock
    # The service before this one may have told it that it was alone.
    lease, terms = NodeLease(1000.0 + shift, ttl + patience), NodeTerms(ttl, patience)
    heard = 1000.0
    to_node: list[tuple[float, dict[str, Any]]] = []  # in order, some late
    asked: tuple[float, dict[str, Any]] | None = None  # one at a time; given up after a while
    answers: list[tuple[float, dict[str, Any], float]] = []
    now, alone, lost = 1000.0, True, 0
    for _ in range(1500):
        now += chance.uniform(0.1, 4.0)
        if chance.random() < 0.03:
            alone = not alone
        while to_node and to_node[0][0] <= now:
            _, offered = to_node.pop(0)
            if offered["got"] is not None:
                lease.renew(offered["got"], offered["after_s"], now + shift)
            if chance.random() < 0.9:
                answers.append((now + chance.choice((0.0, 0.0, 1.0, 40.0)), offered, now + shift))
        if asked is not None and now > asked[0] + ttl / 3:
            asked = None
        for arrives, offered, sent_at in list(answers):
            if arrives <= now:
                answers.remove((arrives, offered, sent_at))
                if asked is not None and offered is asked[1]:
                    asked, heard = None, now
                    terms.got("n", sent_at)
                    terms.accepted("n", offered)
        if not alone and now - heard >= terms.longest_s("n") + margin:
            assert lease.over(now + shift)
            lost += 1
        if asked is None:
            asked = (now, terms.offer("n", alone=alone, dying=False))
            at = now + chance.choice((0.0, 0.0, 0.0, 0.5, 60.0, 300.0))
            to_node.append((max(at, to_node[-1][0] if to_node else 0.0), asked[1]))
    assert lost or seed % 10  # it does happen


# -- the words of the sessions ---------------------------------------------------------------


class PaperNode:
    """What `LeaseKeeper` needs of a node."""

    def __init__(self, folder: Path) -> None:
        self.settings = SimpleNamespace(lease_word=lambda s: str(folder / f"{s}.lease"))
        self.sessions: dict[str, Any] = {}
        self.stored: Any = None
        self.full = False
        self.ledger = SimpleNamespace(get=lambda *_: self.stored, put=self._put)
        self.keeper = LeaseKeeper(self)  # type: ignore[arg-type]

    def _put(self, _kind: str, _name: str, body: Any) -> None:
        self.stored = body

    def save(self, live: Any) -> None:
        if self.full:
            raise NoSpace("the disk is full")

    def try_save(self, live: Any) -> None: ...

    def spawn(self, job: Any, what: str) -> None:
        asyncio.run(job)

    def session(self, name: str) -> Any:
        record = SessionRecord(name, "alice", "batch", "basic", "", "capsule", 1, 0, 0)
        record.life = Life.LIVE
        live = SimpleNamespace(record=record, word=None, capsule=None, lock=asyncio.Lock())
        self.sessions[name] = live
        self.keeper.begin(live)  # type: ignore[arg-type]
        return live

    def renewed(self, ago_s: float, *here: str) -> None:
        """The service has got what was sent so long ago; 10 s without more are too long."""
        names = dict.fromkeys(here, 0)
        self.keeper.renewed(Renewal(boot_clock() - ago_s, 10.0, names))

    def may_run(self, name: str) -> bool:
        word: LeaseWord = self.sessions[name].word
        end = word.read()
        return end is None or end > boot_clock()


@pytest.fixture
def node(tmp_path: Path) -> Any:
    made = PaperNode(tmp_path)
    yield made
    for live in made.sessions.values():
        if live.word is not None:
            live.word.close()


def test_a_session_has_an_end_once_it_could_be_elsewhere(node: PaperNode) -> None:
    live = node.session("a")
    node.renewed(1.0, "a")
    assert live.word.read() is None
    node.keeper.arm(live)
    assert live.word.read() == pytest.approx(boot_clock() + 9.0, abs=1.0)
    assert live.record.restartable


def test_none_is_armed_when_it_could_be_elsewhere_already(node: PaperNode) -> None:
    live = node.session("a")
    node.renewed(20.0, "a")
    with pytest.raises(Unavailable, match="it goes on here"):
        node.keeper.arm(live)
    assert live.word.read() is None


def test_what_moved_on_meanwhile_stays_frozen_whoever_wants_it_to_go_on(node: PaperNode) -> None:
    moved, kept = node.session("moved"), node.session("kept")
    node.renewed(1.0, "moved", "kept")
    for live in (moved, kept):
        node.keeper.arm(live)
        live.word.write(1.0)
    node.keeper.lease = NodeLease(boot_clock() - 30.0, 10.0)
    node.keeper.look()
    node.renewed(0.0, "kept")
    assert node.may_run("kept")
    assert kept.record.frozen is None
    assert not node.keeper.release(moved, [7])  # a checkpoint of it has just failed
    assert moved.record.frozen["stopped"] == [7]
    assert not node.may_run("moved")
    # And under the next agent, which reads it from the ledger.
    again = LeaseKeeper(node)  # type: ignore[arg-type]
    assert again.holds(moved)
    assert not again.holds(kept)
    for live in (moved, kept):
        live.word.close()
        again.begin(live)
    assert not node.may_run("moved")
    assert node.may_run("kept")


def test_what_comes_back_before_the_first_renewal_has_an_end(node: PaperNode) -> None:
    def told(ago_s: float) -> Renewal:
        return Renewal(boot_clock() - ago_s, 10.0, {})

    node.keeper.first(told(2.0))
    live = node.session("a")
    live.record.restartable = True
    live.word.close()
    node.keeper.begin(live)
    assert live.word.read() == pytest.approx(boot_clock() + 8.0, abs=1.0)
    end = node.keeper.lease.end
    node.keeper.first(told(1.0))  # of a command that was on its way for long
    assert node.keeper.lease.end == end


def test_a_ledger_that_refuses_arms_nothing(node: PaperNode) -> None:
    live = node.session("a")
    node.renewed(1.0, "a")
    node.full = True
    with pytest.raises(NoSpace):
        node.keeper.arm(live)
    node.full = False
    node.keeper.arm(live)
    assert live.word.read() is not None


def test_the_ledger_knows_who_is_frozen_before_it_has_a_new_end(node: PaperNode) -> None:
    live = node.session("a")
    node.renewed(1.0, "a")
    node.keeper.arm(live)
    node.keeper.lease = NodeLease(boot_clock() - 30.0, 10.0)
    live.word.write(1.0)
    order: list[Any] = []
    node.try_save = lambda live: order.append(live.record.frozen is not None)  # type: ignore
    node.ledger.put = lambda *_: order.append("lease")
    node.renewed(0.0)
    assert order == [True, "lease"]
    assert not node.may_run("a")


def test_what_is_being_saved_as_its_time_ends_goes_on_with_the_next_renewal(
    node: PaperNode,
) -> None:
    live = node.session("a")
    node.renewed(9.5, "a")
    node.keeper.arm(live)
    end = live.word.read()
    live.record.saving = {"id": "c", "level": "process"}
    node.renewed(0.0, "a")  # pid 1 may just be stopping some of it
    assert live.word.read() == end
    assert not node.keeper.release(live, [])
    live.record.saving = None
    node.renewed(0.0, "a")
    assert node.may_run("a")


@pytest.mark.asyncio
async def test_nothing_goes_on_while_somebody_holds_the_session(node: PaperNode) -> None:
    live = node.session("a")
    node.renewed(1.0, "a")
    node.keeper.arm(live)
    jobs: list[Any] = []
    node.spawn = lambda job, _: jobs.append(asyncio.ensure_future(job))  # type: ignore
    node.keeper.lease = NodeLease(boot_clock() - 30.0, 10.0)
    live.word.write(1.0)
    async with live.lock:
        node.renewed(0.1, "a")
        await asyncio.sleep(0)
        assert not node.may_run("a")
        node.renewed(0.0)  # it was started elsewhere meanwhile
    await asyncio.gather(*jobs)
    assert not node.may_run("a")
    node.renewed(0.0, "a")
    await asyncio.gather(*jobs)
    assert node.may_run("a")


def test_nothing_goes_on_in_the_middle_of_a_checkpoint(node: PaperNode) -> None:
    live = node.session("a")
    node.renewed(1.0, "a")
    node.keeper.arm(live)
    live.word.write(1.0)
    node.keeper.lease = NodeLease(boot_clock() - 30.0, 10.0)
    live.record.saving = {"id": "c", "level": "process"}
    for _ in range(3):
        node.renewed(0.0, "a")
        assert not node.may_run("a")
    assert not node.keeper.release(live, [])
    live.record.saving = None
    node.renewed(0.0, "a")
    assert node.may_run("a")
    assert live.record.frozen is None


def test_a_session_that_just_ends_keeps_no_renewal_from_the_others(node: PaperNode) -> None:
    ending, stays = node.session("ending"), node.session("stays")
    node.renewed(2.0, "ending", "stays")
    for live in (ending, stays):
        node.keeper.arm(live)
    node.keeper.remove(ending)
    assert ending.word is None
    node.keeper.remove(ending)
    node.renewed(1.0, "ending", "stays")
    assert stays.word.read() == pytest.approx(boot_clock() + 9.0, abs=0.5)


def test_a_word_that_cannot_be_written_keeps_no_other_from_it(
    node: PaperNode, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = node.session("bad"), node.session("good")
    node.renewed(2.0, "bad", "good")
    for live in (bad, good):
        node.keeper.arm(live)
    before = bad.word.read()

    def fails(end: float | None) -> None:
        raise OSError(errno.EIO, "Input/output error")

    bad.word.write = fails
    node.renewed(1.0, "bad", "good")
    assert bad.word.read() == before
    assert good.word.read() > before
    assert "session bad" in caplog.text
    del bad.word.write
    node.renewed(0.0, "bad", "good")
    assert bad.word.read() == good.word.read()
