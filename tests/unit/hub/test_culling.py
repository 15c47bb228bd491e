"""Which servers the arbiter lets the idle culler stop; the real culler is in test_hibernate."""

from __future__ import annotations

from datetime import timedelta

import pytest
from singularity_proxy.errors import BadRequest
from singularity_spawner.culling import arbiter, owner_of
from singularity_spawner.hibernation import Hibernation
from support.hub_scheduler import TOKEN, scheduler

SERVER = {"name": "big", "full_name": "alice/big", "url": "/user/alice/big/"}
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("server", "owner"),
    [
        (SERVER, ("alice", "big")),
        ({"name": "", "full_name": "alice/", "url": "/user/alice/"}, ("alice", "")),
        ({"name": "", "url": "/jupyter/user/a%40b.org/"}, ("a@b.org", "")),
        ({"name": "x", "url": "https://alice.hub.org/user/alice/x/"}, ("alice", "x")),
    ],
)
def test_whose_server_it_is(server, owner):
    assert owner_of(server) == owner


def test_what_was_stored_in_the_second_look_does_not_end():
    first = Hibernation(to_end={"a": "no CRIU", "b": "no CRIU"})
    later = Hibernation(suspended=("a",), to_end={"b": "no CRIU"}, left=("c goes on",))
    assert first.and_then(later) == Hibernation(("a",), {"b": "no CRIU"}, ("c goes on",))


def test_an_address_that_names_nobody():
    with pytest.raises(BadRequest, match="cannot be told"):
        owner_of({"name": "", "url": "/lab"})


def session(**changes):
    return {
        "id": "aaaaaaaaaaaa",
        "name": "train.ipynb",
        "user": "alice",
        "kind": "interactive",
        "owner": {"server": "big"},
        "process_state": "live",
        "busy": False,
        **changes,
    }


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("sessions", "culled"),
    [
        ([], True),
        ([session()], True),
        ([session(busy=True)], False),
        ([session(process_state="resuming")], False),
        ([session(busy=True, process_state="suspended")], True),
        ([session(keep_until="2026-11-21T10:00:00+00:00")], False),
        ([session(keep_until=None)], True),
        ([session(keep_until="2026-11-21T10:00:00+00:00", process_state="suspended")], True),
        ([session(busy=True, user="bob")], True),
        ([session(busy=True, owner={"server": ""})], True),
        ([session(busy=True, owner={})], True),
        ([session(busy=True, kind="batch")], True),
    ],
)
async def test_no_server_is_culled_in_the_middle_of_a_cell(monkeypatch, sessions, culled):
    async with scheduler() as service:
        monkeypatch.setenv("SINGULARITY_API_URL", service.url)
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", TOKEN)
        service.sessions = sessions
        assert await arbiter(inactive=HOUR, inactive_limit=60, server=SERVER) is culled
        assert not await arbiter(inactive=HOUR, inactive_limit=7200, server=SERVER)
        assert service.hibernated == [], "the culler may leave it alone all the same"


@pytest.mark.asyncio
async def test_nothing_is_culled_while_the_scheduler_is_away(monkeypatch):
    monkeypatch.setenv("SINGULARITY_API_URL", "http://127.0.0.1:1/services/singularity/")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", TOKEN)
    assert not await arbiter(inactive=HOUR, inactive_limit=60, server=SERVER)
