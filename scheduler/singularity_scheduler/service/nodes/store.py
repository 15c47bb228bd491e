"""The scheduler's side of the checkpoint store: what is made by itself, what is deleted, and what a
node that died had stored before it could tell.

Part of the controller. The store itself is only ever touched by node agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from singularity_proxy.errors import CheckpointCancelled, SingularityError

from singularity_scheduler.core.gangs import sets as gang_sets
from singularity_scheduler.core.reasons.reason import Reason
from singularity_scheduler.core.state import checkpoints
from singularity_scheduler.core.state.cluster import Node
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import FINAL

if TYPE_CHECKING:
    from singularity_scheduler.service.controller import Controller

log = logging.getLogger("singularity.service")

LOOK_S = 2.0
"""How often it is looked whether a session is due for a checkpoint."""

REST_S = 60.0
"""A session whose checkpoint failed is left alone for so long; what could not be deleted is tried
again after as long."""

BY = "the scheduler"


class StoreKeeper:
    """One per controller; `run` is its loop."""

    def __init__(self, controller: Controller) -> None:
        self._c = controller
        self._steps: dict[str, int] = {}
        """session -> steps it has made, as its agent counts"""
        self._stored_at: dict[str, tuple[str, int]] = {}
        """session -> its newest checkpoint and how many steps it had made then"""
        self._rest: dict[str, float] = {}
        self._under_way: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._kicked = asyncio.Event()
        self._kicked.set()  # what was left over by the service before this one

    def kick(self) -> None:
        """Something is to be deleted from the store."""
        self._kicked.set()

    def stepped(self, session: str, count: int) -> None:
        """A session has made `count` steps since it was started."""
        before = self._steps.get(session)
        self._steps[session] = count
        if before is None or count < before:  # never seen, or it began anew
            self._stored_at.pop(session, None)
            self._base(session, count)

    def _base(self, session: str, count: int) -> None:
        view = self._c.state.sessions.get(session)
        last = view.last_checkpoint if view else None
        self._stored_at[session] = (last.id if last else "", count)

    async def run(self) -> None:
        """Work until cancelled."""
        sweep_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._kicked.wait()
            if self._kicked.is_set() or loop.time() >= sweep_at:
                self._kicked.clear()
                sweep_at = loop.time() + REST_S
                await self._guarded(self.sweep())
            for view in self.due(loop.time()):
                self._under_way.add(view.id)
                task = asyncio.ensure_future(self._guarded(self._take(view)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: object) -> None:
        try:
            await work  # type: ignore[misc]
        except SingularityError as error:
            log.warning("%s", error.message)

    # -- made by itself ---------------------------------------------------------------------

    def due(self, now: float) -> list[SessionView]:
        """The sessions that are to be stored now (`now`: of the loop's clock)."""
        found = []
        for view in list(self._c.state.sessions.values()):
            if view.id in self._under_way or self._rest.get(view.id, 0.0) > now:
                continue
            if not gang_sets.is_due_with(self._c.state, view):
                continue
            if self.why(view) is not None:
                found.append(view)
        return found

    def why(self, view: SessionView) -> Reason | None:
        last = view.last_checkpoint
        count = self._steps.get(view.id, 0)
        known = self._stored_at.get(view.id)
        if known is None or (last is not None and last.id != known[0]):
            self._base(view.id, count)
            known = self._stored_at[view.id]
        return checkpoints.due(
            view,
            self._c.now(),
            self._c.checkpoint_every_s,
            self._c.checkpoint_every_steps,
            count - known[1],
        )

    async def _take(self, view: SessionView) -> None:
        try:
            why = self.why(view)
            if why is None:  # it was stored meanwhile
                return
            done = await self._c.submit(ev.CheckpointAsked(view.id, BY, due=why))
            await asyncio.gather(*done.tasks.values())
        except CheckpointCancelled as error:  # by a move, which stores everything itself
            log.info("session %s was not stored by itself: %s", view.id, error.message)
        except SingularityError as error:
            self._rest[view.id] = asyncio.get_running_loop().time() + REST_S
            log.info("session %s was not stored by itself: %s", view.id, error.message)
        finally:
            self._under_way.discard(view.id)

    # -- deleted ----------------------------------------------------------------------------

    async def sweep(self) -> int:
        """Delete what is marked; returns how many are gone. What cannot be reached waits."""
        controller = self._c
        if controller.keep_checkpoint_days:
            await controller.ledger.drop_old(
                controller.now() - controller.keep_checkpoint_days * 86400
            )
        await controller.ledger.drop_ended(controller.now())
        deleted = 0
        for session, user, reference in await controller.ledger.dropped():
            node = self._node()
            view = controller.state.sessions.get(session)
            controller.archive.forget(session)
            if view is not None and reference.id not in {
                c.id for c in view.checkpoints if c.dropped
            }:
                continue  # the end of its session was taken back meanwhile
            if node is not None:
                try:
                    await controller.commander.transfers.delete(
                        node.id, session, user, reference.id
                    )
                except SingularityError as error:
                    log.warning("checkpoint %s stays for now: %s", reference.id, error.message)
                    continue
            elif view is not None or not self._gone_with_it(reference.level):
                continue
            if view is not None:
                await controller.report_now(ev.CheckpointGone(session, reference.id))
            else:
                await controller.ledger.forget_checkpoint(session, reference.id)
                controller.archive.forget(session)
            deleted += 1
        return deleted

    def _gone_with_it(self, level: str) -> bool:
        """Agents that know no store keep device state in a folder that ends with its session."""
        return level == "device" and any(n.connected for n in self._c.state.nodes.values())

    def _node(self, besides: str = "") -> Node | None:
        """One that reaches the store."""
        nodes = (n for n in self._c.state.nodes.values() if n.connected and n.id != besides)
        return next(
            (n for n in nodes if n.abilities.stores and not n.abilities.store_trouble), None
        )

    # -- a node that died -------------------------------------------------------------------

    async def look(self, lost: str) -> None:
        """Take over what the store has of the sessions of a lost node."""
        entry = self._c.state.nodes.get(lost)
        for event in await self.found(sorted(entry.sessions) if entry else [], besides=lost):
            await self._c.report_now(event)

    async def found(self, sessions: list[str], besides: str = "") -> list[ev.CheckpointsFound]:
        """Ask the store what it has of these sessions: their node may have died after a checkpoint
        was complete and before it could tell. Through any node but `besides`."""
        node, events = self._node(besides), []
        if node is None:
            return []
        for sid in sessions:
            view = self._c.state.sessions.get(sid)
            if view is None or view.process_state in FINAL or view.pending:
                continue
            try:
                refs = await self._c.commander.transfers.listed(node.id, sid, view.user)
            except SingularityError as error:
                log.warning("the store was not asked for session %s: %s", sid, error.message)
                break
            events.append(ev.CheckpointsFound(sid, tuple(refs)))
        return events
