"""The service tells the parts of a gang where they reach one another."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from singularity_scheduler.core.values.requested import Part
from singularity_scheduler.core.values.states import ProcessState
from singularity_scheduler.service.nodes.peers import Peers
from support.elastic_ranks import run

SESSIONS = ("one", "two")


class Service:
    """As much of a controller as is asked here: a gang with a part on node a and one on node b."""

    def __init__(self) -> None:
        views = {
            session: SimpleNamespace(
                part=Part("ab12", number, SESSIONS, "secret"),
                node="ab"[number],
                attempt=1,
                incarnation=1,
                final=False,
                pending=False,
                process_state=ProcessState.LIVE,
            )
            for number, session in enumerate(SESSIONS)
        }
        self.state = SimpleNamespace(
            sessions=views, node=lambda node: SimpleNamespace(connected=True)
        )
        self.fleet = self
        self.knows: dict[str, dict[str, str]] = {}

    async def call(self, node: str, method: str, session: str, peers: dict[str, str]) -> None:
        assert (method, node) == ("session.peers", self.state.sessions[session].node)
        self.knows[session] = peers

    async def told(self, peers: Peers) -> dict[str, dict[str, str]]:
        """What each part knows when everything was said."""
        while peers._telling:
            await asyncio.sleep(0)
        return self.knows


def test_nobody_hears_of_who_has_not_gone_back_yet() -> None:
    async def go() -> None:
        service: Any = Service()
        peers = Peers(service)
        peers.joined("a", {"one": "a:1"})
        peers.joined("b", {"two": "b:1"})
        for session in ("one", "two"):
            service.state.sessions[session].incarnation = 2
        peers.told("one", "a:2")
        assert (await service.told(peers))["one"] == {"0": "a:2"}
        peers.told("two", "b:2")
        all_ = {"0": "a:2", "1": "b:2"}
        assert await service.told(peers) == {"one": all_, "two": all_}

    run(go())


def test_a_node_that_was_lost_says_nothing_of_what_began_again_elsewhere() -> None:
    async def go() -> None:
        service: Any = Service()
        peers = Peers(service)
        peers.joined("a", {"one": "a:1"})
        peers.joined("b", {"two": "b:1"})
        all_ = {"0": "a:1", "1": "b:1"}
        assert await service.told(peers) == {"one": all_, "two": all_}
        service.state.sessions["two"].node = "c"
        peers.told("two", "c:1")
        peers.joined("b", {"two": "b:1"})
        all_ = {"0": "a:1", "1": "c:1"}
        assert await service.told(peers) == {"one": all_, "two": all_}

    run(go())
