"""The commands that move whole sessions: between a node and the store, and what is stored.

Part of the commander. Each is sent until it is answered as long as the session still waits for it,
with the same epoch and sequence number, so an agent that has done it answers what it answered then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from singularity_proxy.errors import (
    DamagedCheckpoint,
    NoSpace,
    NotFound,
    SingularityError,
    Unavailable,
    Unsupported,
)

from singularity_scheduler.core.state.stored import CheckpointRef, LossReport
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import ProcessState
from singularity_scheduler.service.ports import Fleet
from singularity_scheduler.service.schemas.documents import parse_iso
from singularity_scheduler.text.reasons import render

from .gang_cuts import GangCuts
from .gang_sets import GangSets
from .peers import gang_launch

log = logging.getLogger("singularity.service")

Json = Mapping[str, Any]

STORE_LIMIT_S = 60.0
"""How long a list or a delete of checkpoints may take; both only touch small objects."""


ASK_LIMIT_S = 5.0
"""How long an agent may take to say how a kernel is reached."""


ORIGIN_S = 5.0
"""How long the node of its kernel connection may be away (its agent may just be restarted) before a
session comes back with another one."""

HANGS_S = 20.0
"""The same of a node that is connected and does not answer: its agent waits up to 10 s for a relay
that is just being replaced."""


AGAIN_S = (0.5, 2.0, 6.0)
"""Pauses before a resume is tried again that failed by something that passes."""

RETRY_AGAIN_S = (1.0, 4.0, 15.0, 40.0)
"""The same of a run that begins its next attempt, for which nobody waits in front of a page; after
all of them it is told, costs no attempt, and they begin again."""

LOOK_S = 1.0
"""How often it is looked whether what is being stored of a gang is still wanted."""


class Send(Protocol):
    """`Commander.call`: one command, until it is answered or not wanted any more."""

    async def __call__(
        self, action: ev.Action, method: str, wanted: Callable[[], bool], **params: Any
    ) -> Any: ...


class Transfers:
    """`look` finds a session as it is now; `failed` takes the error for who asked."""

    def __init__(
        self,
        fleet: Fleet,
        send: Send,
        report: Callable[[ev.Event], Awaitable[None]],
        look: Callable[[str], SessionView | None],
        failed: Callable[[str, SingularityError], None],
    ) -> None:
        self._fleet = fleet
        self._send = send
        self._report = report
        self._look = look
        self._failed = failed
        self.cuts = GangCuts(fleet)
        self._sets = GangSets(self.cuts, report)
        self.terms: Callable[[str], Json | None] = lambda node: None
        """What a node is told of its lease: what comes back there must have an end at once."""
        self.unknown: Callable[[str], object] = lambda node: None
        """As of `Commander`."""
        self.bridged: Callable[[str, str], None] = lambda session, address: None
        """Told where the bridge of a part of a gang listens, that has come back."""

    async def suspend(self, action: ev.Suspend) -> None:
        view = self._look(action.session)
        part = view is not None and view.part is not None
        try:
            async with self.cuts.standing(action):
                answer = await self._send(
                    action,
                    "session.suspend",
                    lambda: self._awaits(action, ProcessState.SUSPENDING),
                    epoch=action.epoch,
                    seq=action.seq,
                    name=action.name,
                    reason=render(action.why),
                    **({"standing": True} if part else {}),
                    **({"urgent": True} if action.urgent else {}),
                    **_back_to(view),
                )
            reference = reference_of(answer["checkpoint"])
            ms = float((answer.get("ms") or {}).get("total") or 0.0)
        except SingularityError as error:
            # An agent that was killed after it had published no longer knows the session.
            found = await self._published(action) if isinstance(error, NotFound) else None
            if found is not None:
                await self._report(
                    ev.Suspended(action.session, action.epoch, action.seq, found, 0.0)
                )
                return
            if self._awaits(action, ProcessState.SUSPENDING):
                await self._report_not_stored(action, error)
                if isinstance(error, NotFound):
                    self.unknown(action.node)
            return
        await self._report(ev.Suspended(action.session, action.epoch, action.seq, reference, ms))

    async def _report_not_stored(
        self, action: ev.Suspend | ev.Fence, error: SingularityError
    ) -> None:
        self._failed(action.session, error)
        damaged = is_damage(error) and bool(_back_to(self._look(action.session)))
        await self._report(
            ev.SuspendFailed(action.session, action.epoch, action.seq, error.message, damaged)
        )

    async def _published(self, action: ev.Suspend) -> CheckpointRef | None:
        """The checkpoint of a suspend whose answer was lost, if the store has it."""
        view = self._look(action.session)
        if view is None:
            return None
        try:
            stored = await self.listed(action.node, action.session, view.user)
        except SingularityError:
            return None
        known = {c.id for c in view.checkpoints}
        new = [c for c in stored if c.id not in known and c.level == "process"]
        return max(new, key=lambda c: c.at, default=None)

    async def resume(self, action: ev.Resume) -> None:
        view = self._look(action.session)
        if view is None:
            return
        pauses = iter(RETRY_AGAIN_S if view.retrying else AGAIN_S)
        while True:
            try:
                answer = await self._resume_once(view, action)
                loss = loss_of(answer["loss"], action.checkpoint)
                break
            except SingularityError as error:
                if not self._awaits(action, ProcessState.RESUMING):
                    return
                pause = next(pauses, None) if is_passing(error) else None
                if pause is None:
                    await self._report_not_back(action, error)
                    return
                log.warning("session %s: %s: tried again", action.session, error.message)
            await asyncio.sleep(pause)
            if not self._awaits(action, ProcessState.RESUMING):
                return
        if bridge := answer.get("bridge"):
            self.bridged(action.session, str(bridge))
        relay = answer.get("relay") is True
        await self._report(ev.Resumed(action.session, action.epoch, action.seq, loss, relay))

    async def _resume_once(self, view: SessionView, action: ev.Resume) -> Any:
        forked = action.source != action.session  # it gets a connection of its own
        gang = gang_launch(view)
        return await self._send(
            action,
            "session.resume",
            lambda: self._awaits(action, ProcessState.RESUMING),
            user=view.user,
            kind=view.kind.value,
            tier=view.tier.value,
            name=view.name,
            virtual_devices=view.virtual_devices,
            epoch=action.epoch,
            seq=action.seq,
            checkpoint=action.checkpoint,
            from_session=action.source,
            incarnation=action.incarnation,
            undo=action.undo,
            terms=self.terms(action.node),
            connection=None if forked else await self.connection(view, action),
            reason=render(action.why),
            **({"gang": gang} if gang else {}),
        )

    async def _report_not_back(self, action: ev.Resume, error: SingularityError) -> None:
        self._failed(action.session, error)
        await self._report(
            ev.ResumeFailed(
                action.session,
                action.epoch,
                action.seq,
                error.message,
                is_damage(error),
                is_passing(error),
            )
        )

    async def fence(self, action: ev.Fence) -> None:
        """End what a node still has of a session that goes on from the store; its relay stays if
        that is the one in use."""
        view = self._look(action.session)
        relay = view is not None and (view.origin or view.node) == action.node
        try:
            await self._send(
                action,
                "session.end",
                lambda: not self._is_home(action),
                epoch=action.epoch,
                seq=action.seq,
                reason=render(action.why),
                grace_s=0.0,
                keep=True,
                keep_relay=relay,
                **(_back_to(view) if self._awaits(action, ProcessState.SUSPENDING) else {}),
            )
        except NotFound:
            pass
        except SingularityError as error:
            log.error("session %s: %s", action.session, error.message)
            if self._awaits(action, ProcessState.SUSPENDING):
                await self._report_not_stored(action, error)
            return
        await self._report(ev.Fenced(action.session, action.epoch, action.seq, action.node))

    async def checkpoint(self, action: ev.TakeCheckpoint, whole: bool) -> CheckpointRef:
        """Raises what the agent refused. `whole`: the agent knows `session.checkpoint`; one that
        does not stores device state, and is not asked twice, for a second one would be another.
        That of a part of a gang counts when all of its set are there."""
        if action.set_id:
            return await self._sets.store(action, lambda: self._part(action))
        if whole:
            answer = await self._send(
                action,
                "session.checkpoint",
                lambda: self._look(action.session) is not None,
                name=action.name or "",
                level=action.level,
                epoch=action.epoch,
                seq=action.seq,
            )
        else:
            answer = await self._fleet.call(
                action.node,
                "device.checkpoint",
                timeout=None,
                session=action.session,
                name=action.name,
                epoch=action.epoch,
                seq=action.seq,
            )
        reference = _taken(action, answer)
        await self._report(ev.CheckpointTaken(action.session, reference))
        return reference

    async def _part(self, action: ev.TakeCheckpoint) -> CheckpointRef:
        """Store a part whose ranks stand. Given up when the part is not what it was any more: its
        node may never answer."""
        storing = asyncio.ensure_future(
            self._send(
                action,
                "session.checkpoint",
                lambda: self._stays(action),
                name=action.name or "",
                level=action.level,
                epoch=action.epoch,
                seq=action.seq,
                standing=True,
            )
        )
        try:
            while not storing.done():
                await asyncio.wait([storing], timeout=LOOK_S)
                if not storing.done() and not self._stays(action):
                    raise Unavailable(
                        f"the checkpoint of session {action.session} was given up, because its "
                        "gang goes on from another place; what was stored before is kept",
                        session=action.session,
                    )
            return _taken(action, storing.result())
        finally:
            storing.cancel()

    def _stays(self, action: ev.TakeCheckpoint) -> bool:
        """Whether a part is still what is being stored."""
        view = self._look(action.session)
        if view is None or view.node != action.node or view.rollback:
            return False
        return view.process_state in (ProcessState.LIVE, ProcessState.SUSPENDING)

    async def put_back(self, action: ev.PutBack) -> None:
        """Raises what the agent refused; the session goes on as it was then."""
        try:
            answer = await self._send(
                action,
                "device.put_back",
                lambda: self._look(action.session) is not None,
                checkpoint=action.checkpoint,
                discard=action.discard,
                epoch=action.epoch,
                seq=action.seq,
            )
        except SingularityError as error:
            await self._report(ev.ContentsBack(action.session, None, error.message))
            if isinstance(error, NotFound) and "method" in error.fields:
                raise Unsupported(
                    f"node {action.node} cannot put device state back; nothing was changed"
                ) from None
            raise
        if answer["before"] is not None:
            before = replace(reference_of(answer["before"]), cause="restore")
            await self._report(ev.CheckpointTaken(action.session, before))
        loss = loss_of(answer["loss"], action.checkpoint)
        await self._report(ev.ContentsBack(action.session, loss))

    async def connection(self, view: SessionView, action: ev.Resume) -> Any:
        """How its kernel finds its relay, as the relay's node knows it; None when nobody can tell
        (a fork has none yet, or its node is gone: then it gets another one). The relay begins a new
        incarnation if it is one. It holds a key, so it is never stored."""
        now = asyncio.get_running_loop().time
        began = asked = now()
        while (
            answer := await self._ask(view, incarnation=action.incarnation, undo=action.undo)
        ) is None:
            hangs = now() - asked >= ASK_LIMIT_S
            if now() - began > (HANGS_S if hangs else ORIGIN_S):
                return None
            await asyncio.sleep(0.2)
            asked = now()
        return answer.get("connection")

    async def clients(self, view: SessionView) -> Any:
        """How Jupyter reaches its relay; None when nobody can tell. It holds a key as well."""
        return (await self._ask(view) or {}).get("clients")

    async def _ask(self, view: SessionView, **more: Any) -> dict[str, Any] | None:
        """{}: there is no relay; None: the agent of its node does not answer."""
        if not view.origin:
            return {}
        try:
            answer = await self._fleet.call(
                view.origin, "session.connection", timeout=ASK_LIMIT_S, session=view.id, **more
            )
        except Unavailable:
            return None
        except SingularityError:
            return {}
        return answer if isinstance(answer, dict) else {}

    async def listed(self, node: str, session: str, user: str) -> list[CheckpointRef]:
        """What the store has of a session, asked through any node."""
        answer = await self._fleet.call(
            node, "checkpoints.list", timeout=STORE_LIMIT_S, session=session, user=user
        )
        return [reference_of(item) for item in answer]

    async def delete(self, node: str, session: str, user: str, checkpoint: str) -> None:
        """Delete one from the store; one that is not there is deleted already."""
        try:
            await self._fleet.call(
                node,
                "checkpoints.delete",
                timeout=STORE_LIMIT_S,
                session=session,
                user=user,
                id=checkpoint,
            )
        except NotFound as error:
            if "method" in error.fields:
                raise Unavailable(f"node {node} cannot delete checkpoints") from None

    def _is_home(self, action: ev.Action) -> bool:
        """Whether the session has come to this node again."""
        view = self._look(action.session)
        return view is not None and view.node == action.node and view.here

    def _awaits(self, action: ev.Action, state: ProcessState) -> bool:
        view = self._look(action.session)
        return (
            view is not None
            and view.process_state is state
            and (view.epoch, view.seq) == (action.epoch, action.seq)
        )


def reference_of(told: Json) -> CheckpointRef:
    """A checkpoint as an agent tells it."""
    size = int(told["bytes"])
    return CheckpointRef(
        id=str(told["id"]),
        at=parse_iso(told["at"], 0.0),
        bytes=size,
        level=str(told.get("level") or "device"),
        name=str(told.get("name") or ""),
        stored_bytes=int(told.get("stored_bytes") or 0),
        sent_bytes=int(told.get("sent_bytes") or 0),
        incarnation=int(told.get("incarnation") or 1),
        reason=str(told.get("reason") or ""),
    )


def _taken(action: ev.TakeCheckpoint, answer: Json) -> CheckpointRef:
    """The checkpoint that an agent tells it has made for `action`."""
    reference = reference_of({"name": action.name or "", **answer})
    return replace(reference, cause=action.cause)


def _back_to(view: SessionView | None) -> dict[str, str]:
    """Of a session that leaves only to come back from an older checkpoint: the agent looks first
    whether that can be."""
    if view is None or view.part is not None or view.retrying:
        return {}
    goes_back = view.rollback and view.undo and view.restore_from
    return {"back_to": view.restore_from} if goes_back else {}


def loss_of(told: Json, checkpoint: str) -> LossReport:
    """The report of a restore as an agent tells it."""
    return LossReport(
        level=str(told.get("level") or "process"),
        back=tuple(map(str, told.get("back") or ())),
        lost=tuple(map(str, told.get("lost") or ())),
        rolled_back=bool(told.get("rolled_back")),
        hashes_checked=int(told.get("hashes_checked") or 0),
        checkpoint=str(told.get("checkpoint") or checkpoint),
        requests_again=int(told.get("requests_again") or 0),
        outputs_rolled_back=int(told.get("outputs_rolled_back") or 0),
        requests_lost=int(told.get("requests_lost") or 0),
    )


def is_damage(error: SingularityError) -> bool:
    """Whether the checkpoint itself is not what was stored."""
    return isinstance(error, DamagedCheckpoint)


def is_passing(error: SingularityError) -> bool:
    """Whether what made a resume fail says nothing of the session, its checkpoint or its node."""
    return isinstance(error, Unavailable | NoSpace)
