"""What people ask of sessions, from the request to what became of it.

Part of the controller; the REST handlers and the magics ask through it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from singularity_proxy.errors import (
    Conflict,
    NotFound,
    SingularityError,
    Unavailable,
    Unreached,
    Unsupported,
)

from singularity_scheduler.core.policy import refuse_ended
from singularity_scheduler.core.state import checkpoints
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Kind, SessionSpec
from singularity_scheduler.core.values.states import CHANGING, DeviceState, ProcessState
from singularity_scheduler.requests.gang_spec import parts_of
from singularity_scheduler.requests.run_spec import run_of
from singularity_scheduler.requests.spec import parse_name
from singularity_scheduler.service.api import translate
from singularity_scheduler.service.ledger.ledger import Command
from singularity_scheduler.service.schemas import documents
from singularity_scheduler.text.reasons import render

if TYPE_CHECKING:
    from singularity_scheduler.service.controller import Controller

Json = dict[str, Any]

AFTER_A_MOVE = frozenset({"park", "suspend", "migrate", "checkpoint", "resize"})
"""Verbs that cannot be done while devices are being attached, parked or resized."""

MOVE_WAIT_S = 5.0
"""So long they wait for the end of that. A cell's code goes on a moment before the service hears
that its devices are there, so a verb of the next line would be refused for no reason one sees."""


_LEAVING = (DeviceState.PARKING, DeviceState.RESIZING)


class Desk:
    """One per controller."""

    def __init__(self, controller: Controller) -> None:
        self._c = controller

    async def create(
        self,
        user: str,
        spec: SessionSpec,
        launch: Json,
        *,
        server: str | None = None,
        key: str | None = None,
        fingerprint: str = "",
    ) -> tuple[SessionView, Json | None]:
        """Start a session; returns it and the agent's launch answer, None for a run of a notebook:
        that one is only accepted, and starts when there is room. The same `key` again answers with
        the same session. When its start fails, its error is raised and the session is there as
        failed, with the reason."""
        async with self._c.keys.once(user, key):
            if before := await self._c.keys.before(user, key, fingerprint):
                return await self._created_before(before, launch)
            session = uuid4().hex[:12]
            if spec.nodes > 1:
                return await self._create_gang(user, spec, server, key, fingerprint), None
            if spec.run:
                self.refuse_too_many(user)
                spec = replace(spec, run=run_of(spec.run, session))
            else:
                owned = any(launch.get(key) is not None for key in ("owner_pid", "connection"))
                spec = replace(spec, owned=owned)
                self._c.commander.prepare(session, launch)
            try:
                event = ev.SessionCreated(session, user, spec, server)
                command = self._c.keys.command(user, key, "create", session, fingerprint)
                done = await self._c.submit(event, command)
            except BaseException:
                self._c.commander.forget(session)
                raise
        if spec.run:
            return await self._c.find(session), None
        answer = await asyncio.shield(
            next(task for action, task in done.tasks.items() if isinstance(action, ev.Start))
        )
        return await self._c.find(session), answer

    async def _create_gang(
        self, user: str, spec: SessionSpec, server: str | None, key: str | None, fingerprint: str
    ) -> SessionView:
        """Submit a run on several nodes, all parts of it or nothing; returns the first one."""
        self.refuse_too_many(user, spec.nodes)
        gang = uuid4().hex[:12]
        parts = parts_of(spec, gang, token_hex(32), lambda: uuid4().hex[:12])
        first = parts[0][0]
        command = self._c.keys.command(user, key, "create", first, fingerprint)
        await self._c.submit(ev.GangCreated(gang, user, tuple(parts), server), command)
        return await self._c.find(first)

    def refuse_too_many(self, user: str, more: int = 1) -> None:
        """`Conflict` when a user would have too many queued runs with so many `more`."""
        state = self._c.ahead
        queued = sum(v.user == user for n in state.nodes for v in state.queued(n))
        most = self._c.max_queued_runs
        if most and queued + more > most:
            has = f"{user} has {queued} queued runs already"
            what = "more are" if more == 1 else f"{more} more (of {most} in all) are"
            raise Conflict(
                f"{has}, and {what} not taken; nothing was started: wait until some have started, "
                "or cancel some",
                queued=queued,
            )

    async def _created_before(
        self, before: Command, launch: Json
    ) -> tuple[SessionView, Json | None]:
        if before.verb != "create":
            raise Conflict(f"this key was already used to {before.verb} session {before.session}")
        view = await self._c.find(before.session)
        if view.run is not None:
            return view, None
        if view.final:
            raise Conflict(
                f"session {view.label} that this key started has ended: {render(view.why)}",
                session=view.id,
                state=view.word,
            )
        answer = await self._c.commander.start_again(view, launch)
        return await self._c.find(before.session), answer

    async def act(
        self,
        view: SessionView,
        verb: str,
        args: Json,
        by: str,
        key: str | None = None,
        fingerprint: str = "",
    ) -> SessionView:
        """One of `CHANGES`; returns the session as it is when that is done, was refused (raised) or
        has taken `settle_s`."""
        try:
            return await self._act(view, verb, args, by, key, fingerprint)
        except NotFound as error:
            raise await self._explain_missing(view, error) from None

    async def _act(
        self, view: SessionView, verb: str, args: Json, by: str, key: str | None, fingerprint: str
    ) -> SessionView:
        async with self._c.keys.once(by, key):
            if before := await self._c.keys.before(by, key, fingerprint):
                if (before.verb, before.session) != (verb, view.id):
                    raise Conflict(f"this key was used to {before.verb} session {before.session}")
                return await self._c.find(view.id)
            refuse_ended(view)
            if verb in AFTER_A_MOVE:
                await self._c.until(lambda: not self._moving(view.id, verb), MOVE_WAIT_S)
            node = self._c.state.nodes.get(view.node)
            types = {d.id: d.type for d in node.devices.values()} if node else {}
            event = translate.verb_event(view.id, verb, args, by, types)
            self._c.commander.failures.pop(view.id, None)
            command = self._c.keys.command(by, key, verb, view.id, fingerprint)
            if verb == "checkpoint":
                done = await self._c.submit(event)
                await asyncio.shield(asyncio.gather(*done.tasks.values()))
                await self._c.keys.happened(command)
            else:
                done = await self._c.submit(event, command)
                await self._put_back(done.tasks, by, key)
        await self._c.until(lambda: self._settled(view.id))
        if error := self._c.commander.failures.pop(view.id, None):
            await self._c.keys.failed(by, key)
            raise error
        return await self._c.find(view.id)

    async def _explain_missing(self, view: SessionView, error: NotFound) -> SingularityError:
        """Return what a person should read when the agent of a session's node does not have it (its
        process was lost there without a word): what became of it, as soon as the node was asked
        what it has. Other errors are returned as they are."""
        if error.fields.get("missing") != "session":
            return error
        node = (await self._c.find(view.id)).node
        await asyncio.wait([self._c.reports.look_again(node)], timeout=MOVE_WAIT_S)
        found = await self._c.find(view.id)
        lost = f"node {node} has nothing of {view.label} any more, so this was not done"
        return Conflict(f"{lost}: {render(found.why)}", session=view.id, state=found.word)

    async def _what_became(self, view: SessionView, node: str, done: str) -> Unreached:
        """Return what a person should read when a node's answer was lost: whether `done` is not
        known, and how its session stands, as soon as the node was asked what it has."""
        loop, state = asyncio.get_running_loop(), self._c.state
        until = loop.time() + MOVE_WAIT_S
        await asyncio.wait([self._c.reports.look_again(node)], timeout=MOVE_WAIT_S)
        await self._c.until(
            lambda: node in state.nodes and state.nodes[node].connected, until - loop.time()
        )
        found = await self._c.find(view.id)
        return Unreached(
            f"node {node} did not answer, so whether {done} is not known; {found.label} is "
            f"{found.word} now ({render(found.why)}): try again if it was not",
            session=view.id,
            state=found.word,
        )

    async def _put_back(
        self, tasks: dict[ev.Action, asyncio.Task[Any]], by: str, key: str | None
    ) -> None:
        """Wait for device state that goes back into a session that goes on meanwhile."""
        waited = [task for action, task in tasks.items() if isinstance(action, ev.PutBack)]
        try:
            await asyncio.shield(asyncio.gather(*waited))
        except SingularityError:
            await self._c.keys.failed(by, key)
            raise

    async def end(self, view: SessionView, by: str, reason: str, grace_s: float) -> SessionView:
        """End a session and wait until its agent has confirmed it (at most `grace_s` + 10 s)."""
        if not view.ended:
            await self._c.submit(ev.EndAsked(view.id, by, reason, grace_s))
            await self._c.until(lambda: view.id not in self._c.state.sessions, grace_s + 10.0)
        return await self._c.find(view.id)

    async def signal(
        self,
        view: SessionView,
        signum: int,
        by: str,
        key: str | None = None,
        fingerprint: str = "",
    ) -> None:
        """Send a signal to the session's main process; the same `key` again sends none."""
        async with self._c.keys.once(by, key):
            if await self._c.keys.before(by, key, fingerprint):
                return
            refuse_ended(view)
            await self._c.submit(ev.SignalAsked(view.id, by, signum))
            try:
                await self._c.fleet.call(
                    view.node, "session.signal", session=view.id, signum=signum
                )
            except NotFound as error:
                raise await self._explain_missing(view, error) from None
            except Unreached:
                raise await self._what_became(
                    view, view.node, f"signal {signum} was sent"
                ) from None
            await self._c.keys.happened(
                self._c.keys.command(by, key, "signal", view.id, fingerprint)
            )

    def _moving(self, session: str, verb: str) -> bool:
        """Whether its devices are just changing; a resize does not wait for another one, which is
        refused."""
        view = self._c.state.sessions.get(session)
        changing = CHANGING - {DeviceState.RESIZING} if verb == "resize" else CHANGING
        return view is not None and not view.final and view.device_state in changing

    def _settled(self, session: str) -> bool:
        view = self._c.state.sessions.get(session)
        if view is None or view.final or session in self._c.commander.failures:
            return True
        if view.in_flight or view.leaving is not None:
            return False
        if view.process_state is ProcessState.SUSPENDED:
            return True
        if view.device_state in CHANGING:
            return False
        if view.device_state is not DeviceState.WAITING:
            return not view.wants
        # Devices that are being freed for it, or for who is before it, come within moments.
        holders = self._c.state.nodes[view.node].leases.values()
        return not any(self._c.state.sessions[sid].device_state in _LEAVING for sid in holders)

    # -- checkpoints ------------------------------------------------------------------------

    async def fork(
        self,
        view: SessionView,
        args: Json,
        by: str,
        key: str | None = None,
        fingerprint: str = "",
        server: str | None = None,
    ) -> SessionView:
        """Begin a second session from a checkpoint of `view`, which may have ended; returns the new
        one as it is when it runs, waits for room, or `settle_s` are over."""
        controller = self._c
        word = translate.checkpoint_word(args.get("checkpoint"))
        name = parse_name(args.get("name") or "")
        async with controller.keys.once(by, key):
            if before := await controller.keys.before(by, key, fingerprint):
                return await controller.find(before.session)
            session = uuid4().hex[:12]
            command = controller.keys.command(by, key, "fork", session, fingerprint)
            await controller.submit(ev.ForkAsked(session, view, word, by, name, server), command)
        await controller.until(lambda: self._settled(session))
        if error := controller.commander.failures.pop(session, None):
            await controller.keys.failed(by, key)
            raise error
        return await controller.find(session)

    async def reopen(
        self, view: SessionView, by: str, key: str | None = None, fingerprint: str = ""
    ) -> SessionView:
        """Take the end of a session back; returns it as it is in the store. One that is just ending
        is waited for. Raises `Conflict` when there is nothing to bring it back from."""
        controller = self._c
        async with controller.keys.once(by, key):
            if before := await controller.keys.before(by, key, fingerprint):
                return await controller.find(before.session)
            if view.final:
                await controller.until(lambda: view.id not in controller.state.sessions)
                controller.archive.forget(view.id)  # what retention let go since
                view = await controller.find(view.id)
            command = controller.keys.command(by, key, "reopen", view.id, fingerprint)
            await controller.submit(ev.ReopenAsked(view, by), command)
        return await controller.find(view.id)

    async def drop(self, view: SessionView, word: str, by: str) -> None:
        """Delete a checkpoint; it is gone from all lists at once and from the store soon."""
        controller = self._c
        if view.id in controller.state.sessions:
            await controller.submit(ev.DropAsked(view.id, by, word))
            return
        reference = replace(checkpoints.find(view, word), dropped=True)
        await controller.ledger.write(ev.Decision(stored=((view.id, reference),)))
        controller.archive.forget(view.id)
        controller.store.kick()

    # -- servers that stop and start --------------------------------------------------------

    async def hibernate(
        self, user: str, server: str | None, by: str, wait_s: float | None = None
    ) -> Json:
        """Suspend the notebooks of a user's server (None: of all servers) instead of ending them,
        also those that are just coming back; says of each what became of it. Waits until they are
        in the store, at most `wait_s` (None: `settle_s`)."""
        controller = self._c
        wait_s = controller.settle_s if wait_s is None else wait_s
        until = asyncio.get_running_loop().time() + wait_s
        views = [
            v
            for v in controller.state.sessions.values()
            if v.user == user
            and v.kind is Kind.INTERACTIVE
            and (v.process_state is ProcessState.LIVE or v.in_flight or v.returning)
            and (server is None or (v.server or "") == server)
        ]
        kept = await asyncio.gather(*(self._put_away(v.id, by, until) for v in views))
        found = [await controller.find(v.id) for v in views]
        away = [v for v, why in zip(found, kept, strict=True) if why is None and not v.final]
        stored = [v.id for v in away if v.process_state is ProcessState.SUSPENDED]
        return {
            "suspended": stored,
            "suspending": [v.id for v in away if v.id not in stored],
            "kept": [why for why in kept if why is not None],
        }

    async def _put_away(self, session: str, by: str, until: float) -> Json | None:
        """Suspend one notebook, once it is back if it is just coming back, and wait for that until
        that time of the loop; why it goes on where it is, or None."""
        controller, loop, asked = self._c, asyncio.get_running_loop(), False
        while (view := controller.state.sessions.get(session)) is not None and not view.final:
            live = view.process_state is ProcessState.LIVE
            if live and (why := self._no_images(view)):
                return _kept(session, why, Unsupported(why))
            if asked and _came_back(view):  # refused by its node, or a request has called it
                return _kept(
                    session, render(view.why), controller.commander.failures.pop(session, None)
                )
            if view.process_state is ProcessState.SUSPENDED and not view.called:
                return None
            if (live and view.leaving is None) or view.returning:
                try:
                    controller.commander.failures.pop(session, None)
                    event = ev.SuspendAsked(session, by, why="its server was stopped", urgent=True)
                    await controller.submit(event)
                    asked = True
                except SingularityError as error:
                    return _kept(session, error.message, error)
            if controller.stopped:
                raise Unavailable(
                    "the scheduler is stopping: notebooks that are not suspended yet go on"
                )
            if loop.time() >= until:
                view = await controller.find(session)
                return None if _leaves(view) else _kept(session, render(view.why), None)
            await controller.until(lambda: self._rests(session), until - loop.time())
        return None

    def _no_images(self, view: SessionView) -> str:
        """Why its node cannot store its process; "" when it can or is away."""
        node = self._c.state.nodes.get(view.node)
        if node is None or not node.connected or not node.abilities.image_trouble:
            return ""
        trouble = node.abilities.image_trouble
        return f"node {view.node} cannot store the image of a process ({trouble})"

    def _rests(self, session: str) -> bool:
        """Whether it is neither on its way to the store nor back."""
        view = self._c.state.sessions.get(session)
        return view is None or view.final or not (view.in_flight or view.leaving is not None)

    async def suspended(
        self, user: str, server: str | None, keys: bool, live: bool = False
    ) -> list[Json]:
        """A user's notebooks that are away, or on their way, with what a restarted server needs to
        show them under the kernel ids they had. `keys`: with the connection (it holds a key);
        `live`: and those that run."""
        controller = self._c
        away = {ProcessState.SUSPENDING, ProcessState.SUSPENDED, ProcessState.RESUMING}
        if live:
            away.add(ProcessState.LIVE)
        views = [
            view
            for view in controller.state.sessions.values()
            if view.user == user
            and (server is None or (view.server or "") == server)
            and view.process_state in away
            and view.kind is Kind.INTERACTIVE
        ]
        asked = controller.commander.transfers.clients
        connections = await asyncio.gather(*map(asked, views)) if keys else [None] * len(views)
        return [
            {
                "session": documents.session_document(controller.state, view),
                "kernel_id": view.kernel_id or None,
                "connection": connection,
            }
            for view, connection in zip(views, connections, strict=True)
        ]

    async def own(self, view: SessionView, owner_pid: int) -> SessionView:
        """A restarted server takes its notebook over: process `owner_pid` of the node on which the
        relay is."""
        refuse_ended(view)
        try:
            await self._c.fleet.call(
                view.origin or view.node, "session.own", session=view.id, owner_pid=owner_pid
            )
        except NotFound:
            raise Unavailable(
                f"node {view.origin or view.node} has nothing of {view.label} now; its owner was "
                "not changed: try again in a moment",
                session=view.id,
            ) from None
        except Unreached:
            node = view.origin or view.node
            raise await self._what_became(view, node, "its owner was changed") from None
        return await self._c.find(view.id)


def _came_back(view: SessionView) -> bool:
    """Whether it is live again, or about to be."""
    live = view.process_state is ProcessState.LIVE and view.leaving is None
    return live or view.process_state is ProcessState.RESUMING


def _leaves(view: SessionView) -> bool:
    """Whether it is in the store, on its way there, or over."""
    away = (ProcessState.SUSPENDING, ProcessState.SUSPENDED)
    return view.final or view.leaving is not None or view.process_state in away


def _kept(session: str, reason: str, error: SingularityError | None) -> Json:
    return {
        "session": session,
        "reason": reason,
        "possible": not isinstance(error, Unsupported),
    }
