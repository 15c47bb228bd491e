"""Has checkpoints proved: a node brings each back without a trace and says whether it came.

Part of the controller. What was found out stands with the checkpoint in the ledger; what could not
be found out (the node is busy, the session is just moved) is asked again later. One after another
on each node, `prove_every_s` apart: it is nobody's work that waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from singularity_proxy.errors import NotFound, SingularityError, Unavailable, Unsupported

from singularity_scheduler.core.state import checkpoints
from singularity_scheduler.core.state.cluster import Node
from singularity_scheduler.core.state.stored import CheckpointRef
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView

if TYPE_CHECKING:
    from singularity_scheduler.service.controller import Controller

log = logging.getLogger("singularity.service")

OUTCOMES = ("proved", "failed", "put_off")

LOOK_S = 5.0
"""How often it is looked whether there is something to prove."""

SETTLED_S = 30.0
"""A younger checkpoint is left alone: much is stored because the session is about to move."""

REST_S, LONGEST_REST_S = 300.0, 86_400.0
"""What could not be proved now is left alone for so long, and for twice as long each time."""

LIMIT_S = 3600.0
"""Longer than any proof takes; a node that says nothing until then has lost it."""


class ProofKeeper:
    """One per controller; `run` is its loop."""

    def __init__(self, controller: Controller) -> None:
        self._c = controller
        self.told: Callable[[str], None] = lambda outcome: None
        """Called with each of `OUTCOMES` as it comes."""
        self._rest: dict[tuple[str, str], float] = {}
        """(session, checkpoint) -> until when it is left alone (the loop's clock)."""
        self._put_off: dict[tuple[str, str], int] = {}
        """The same -> how often that was so."""
        self._next: dict[str, float] = {}
        """node -> when it may prove the next one."""
        self._busy: dict[str, asyncio.Task[None]] = {}
        """node -> what it proves by itself."""

    async def run(self) -> None:
        """Work until cancelled."""
        if not self._c.prove_every_s:
            return
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                self.start_due()
        finally:
            for task in self._busy.values():
                task.cancel()

    def start_due(self) -> None:
        """Begin what may begin now."""
        now = asyncio.get_running_loop().time()
        known = self._c.state.sessions
        self._put_off = {one: count for one, count in self._put_off.items() if one[0] in known}
        self._rest = {one: until for one, until in self._rest.items() if until > now}
        for view, reference in self.due():
            node = self._node_for(view)
            if node is None or node.id in self._busy or self._next.get(node.id, 0.0) > now:
                continue
            task = asyncio.ensure_future(self._by_itself(node.id, view, reference))
            self._busy[node.id] = task
            task.add_done_callback(partial(self._over, node.id))

    def _over(self, node: str, _: asyncio.Task[None]) -> None:
        self._busy.pop(node, None)

    def due(self) -> Iterator[tuple[SessionView, CheckpointRef]]:
        """Yield what is to be proved: the newest of each session first, then the others."""
        before = self._c.now() - SETTLED_S
        views = [v for v in self._c.state.sessions.values() if checkpoints.stands_still(v)]
        wanted = [(view, list(reversed(checkpoints.unproved(view, before)))) for view in views]
        newest = [(view, some[0]) for view, some in wanted if some]
        others = [(view, one) for view, some in wanted for one in some[1:]]
        for view, reference in (*newest, *others):
            if (view.id, reference.id) not in self._rest:
                yield view, reference

    async def _by_itself(self, node: str, view: SessionView, reference: CheckpointRef) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._ask(node, view, reference)
        except SingularityError as error:
            one = (view.id, reference.id)
            self._put_off[one] = count = self._put_off.get(one, 0) + 1
            rest = min(LONGEST_REST_S, REST_S * 2 ** min(count - 1, 20))
            self._rest[one] = loop.time() + rest
            log.info("checkpoint %s was not proved: %s", reference.id, error.message)
        finally:
            self._next[node] = loop.time() + self._c.prove_every_s

    async def prove(self, view: SessionView, word: str) -> None:
        """Prove a checkpoint (id or name) because somebody asks, now. Raises `NotFound`, and what
        the node says when it could not be found out."""
        reference = checkpoints.find(view, word)
        node = self._node_for(view)
        if node is None:
            raise Unavailable(
                f"no node is there that could prove checkpoint {reference.id}; it is kept as it "
                "was, try again later",
                session=view.id,
                checkpoint=reference.id,
            )
        await self._ask(node.id, view, reference)

    async def _ask(self, node: str, view: SessionView, reference: CheckpointRef) -> None:
        outcome = "put_off"
        try:
            answer = await self._c.fleet.call(
                node,
                "checkpoints.prove",
                timeout=LIMIT_S,
                session=view.id,
                user=view.user,
                id=reference.id,
            )
            fault = "" if answer["proved"] else str(answer["why"])
            if fault and self._is_gone(view.id, reference.id):
                raise Unavailable(
                    f"checkpoint {reference.id} was deleted while it was proved; nothing else was "
                    "changed",
                    session=view.id,
                    checkpoint=reference.id,
                )
            outcome = "failed" if fault else "proved"
        except NotFound as error:
            if "method" in error.fields:
                raise Unsupported(f"node {node} cannot prove checkpoints") from None
            raise
        finally:
            self.told(outcome)
        if fault:
            log.warning("checkpoint %s did not come back: %s", reference.id, fault)
        await self._note(view, reference, fault)

    def _is_gone(self, session: str, checkpoint: str) -> bool:
        view = self._c.state.sessions.get(session)
        return view is not None and checkpoint not in {c.id for c in checkpoints.visible(view)}

    async def _note(self, view: SessionView, reference: CheckpointRef, fault: str) -> None:
        controller = self._c
        if view.id in controller.state.sessions:
            await controller.report_now(ev.CheckpointProved(view.id, reference.id, fault))
            return
        known = replace(reference, proof_at=controller.now(), proof_fault=fault)
        await controller.ledger.write(ev.Decision(stored=((view.id, known),)))
        controller.archive.forget(view.id)

    def _node_for(self, view: SessionView) -> Node | None:
        """Where the session is or was, if that node can; else any that can."""
        able = [
            node
            for node in self._c.state.nodes.values()
            if node.connected and node.abilities.stores and not node.abilities.trouble
        ]
        near = (view.node, view.origin)
        return min(able, key=lambda node: (node.id not in near, node.id), default=None)
