"""A checkpoint store that hangs: nobody waits for it longer than for one answer that does not come,
and a frozen session for no calls of others."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Self

import pytest
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.cleaning.retention import Policy
from singularity_proxy.errors import StoreUnavailable
from singularity_scheduler.agent.store import stores as module
from singularity_scheduler.agent.store.stores import Stores


class HangingStore:
    """A store that does not answer until it is let go, and then that it is away."""

    url, stat_is_cheap = "s3://bucket", False

    def __init__(self) -> None:
        self.asked, self.let_go = threading.Semaphore(0), threading.Event()
        self.times = 0

    def get(self, key: str) -> bytes:
        self.times += 1
        self.asked.release()
        self.let_go.wait()
        raise StoreUnavailable("the checkpoint store did not answer in time", store=self.url)


class NotedLock:
    """A lock that counts who has come to it."""

    def __init__(self) -> None:
        self._lock, self.came = threading.Lock(), threading.Semaphore(0)

    def __enter__(self) -> Self:
        self.came.release()
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_all_who_wait_are_told_when_the_first_is(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lock, told = HangingStore(), NotedLock(), []
    monkeypatch.setattr(module, "open_store", lambda *_, **__: store)
    stores = Stores("s3://bucket", "", Policy(), 1, identity="known")
    monkeypatch.setattr(stores, "_opening", lock)

    def ask(user: str) -> None:
        try:
            stores.of(user)
        except StoreUnavailable as error:
            told.append(error)

    first = threading.Thread(target=ask, args=("first",))
    first.start()
    store.asked.acquire()
    others = [threading.Thread(target=ask, args=(f"user{n}",)) for n in range(5)]
    for thread in others:
        thread.start()
    for _ in (first, *others):
        lock.came.acquire()
    store.let_go.set()
    for thread in (first, *others):
        thread.join()
    assert store.times == 1
    assert len({id(error) for error in told}) == 6
    assert {error.message for error in told} == {"the checkpoint store did not answer in time"}
    assert {error.fields["store"] for error in told} == {"s3://bucket"}
    with pytest.raises(StoreUnavailable):
        stores.of("later")
    assert store.times == 2, "who comes later asks anew"
    stores.close()


def test_what_is_open_is_had_while_others_ask_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Stores(str(tmp_path / "store"), "", Policy(), 1)
    known = stores.of("alice")
    monkeypatch.setattr(stores, "_open", lambda: known.store)  # it was asked just now
    with stores._opening:  # as who asks it again holds it
        assert stores.of("alice") is known
    stores.close()


@pytest.mark.asyncio
async def test_a_frozen_session_waits_for_no_calls_of_others(tmp_path: Path) -> None:
    stores = Stores(str(tmp_path / "store"), "", Policy(), 1)
    go_on = threading.Event()

    def hang(box: Checkpoints) -> None:
        go_on.wait()

    others = [asyncio.ensure_future(stores.call("bob", hang)) for _ in range(40)]
    try:
        saved = await stores.call("alice", lambda box: box.user, frozen=True)
        assert saved == "alice"
        assert not any(other.done() for other in others)
    finally:
        go_on.set()
        await asyncio.gather(*others)
        stores.close()
