"""What people ask of groups of sessions; as `sessions` for one session."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from singularity_proxy.errors import Conflict, NotFound

from singularity_scheduler.core.steps.goals import objective_of
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import SessionSpec
from singularity_scheduler.core.values.states import FINAL, ProcessState
from singularity_scheduler.service.ledger import group_rows
from singularity_scheduler.service.ledger.group_rows import GroupRow, Place
from singularity_scheduler.service.schemas import documents
from singularity_scheduler.text.reasons import render_words

if TYPE_CHECKING:
    from singularity_scheduler.service.controller import Controller

Json = dict[str, Any]


class GroupDesk:
    """One per controller."""

    def __init__(self, controller: Controller) -> None:
        self._c = controller

    async def create(
        self,
        user: str,
        specs: Callable[[str], Sequence[SessionSpec]],
        *,
        server: str | None = None,
        key: str | None = None,
        fingerprint: str = "",
    ) -> GroupRow:
        """Submit a group, all of it or nothing; `specs` makes its members' of the group's id. The
        same `key` again answers with the same group."""
        controller = self._c
        async with controller.keys.once(user, key):
            if before := await controller.keys.before(user, key, fingerprint):
                view = await controller.find(before.session)
                if view.member is None:
                    raise Conflict(f"this key was already used to {before.verb} session {view.id}")
                return await self.find(view.member.group)
            group = uuid4().hex[:12]
            members = [(uuid4().hex[:12], spec) for spec in specs(group)]
            controller.desk.refuse_too_many(user, len(members))
            event = ev.GroupCreated(group, user, tuple(members), server)
            command = controller.keys.command(user, key, "create", members[0][0], fingerprint)
            await controller.submit(event, command)
        return await self.find(group)

    async def find(self, group: str) -> GroupRow:
        """A group, also one that has ended; raises `NotFound`."""
        found = await self._c.ledger.glance(lambda c: group_rows.page(c, group=group))
        if not found:
            raise NotFound(f"there is no group {group}", group=group)
        return found[0]

    async def page(
        self, user: str | None, limit: int, after: Place | None
    ) -> tuple[list[GroupRow], Place | None]:
        """At most `limit` groups of `user` (None: everybody's), newest first, and what to give as
        `after` for those behind them."""
        found = await self._c.ledger.glance(
            lambda c: group_rows.page(c, user=user, limit=limit + 1, after=after)
        )
        more = len(found) > limit
        found = found[:limit]
        return found, (found[-1].created_at, found[-1].id) if more else None

    async def members(self, group: str) -> list[SessionView]:
        """All its members by their numbers."""
        ids = await self._c.ledger.glance(lambda c: group_rows.members(c, group))
        views = await self._c.archive.views(ids)
        return sorted(views, key=lambda view: view.member.number if view.member else 0)

    async def end(
        self,
        group: str,
        by: str,
        reason: str,
        grace_s: float,
        *,
        key: str | None = None,
        fingerprint: str = "",
    ) -> GroupRow:
        """End all its members and wait until their agents have confirmed it (at most `grace_s` +
        10 s)."""
        controller = self._c
        async with controller.keys.once(by, key):
            if not await controller.keys.before(by, key, fingerprint):
                first = (await self.members(group))[0].id
                command = controller.keys.command(by, key, "end", first, fingerprint)
                await controller.submit(ev.GroupEndAsked(group, by, reason, grace_s), command)
        await controller.until(lambda: not self._there(group), grace_s + 10.0)
        return await self.find(group)

    def _there(self, group: str) -> bool:
        views = self._c.state.sessions.values()
        return any(view.member is not None and view.member.group == group for view in views)


def group_document(row: GroupRow) -> Json:
    """One group as REST shows it."""
    return {
        "id": row.id,
        "user": row.user,
        "name": row.member.name,
        "state": group_state(row.states).value,
        "members": row.member.members,
        "states": dict(sorted(row.words.items())),
        **documents.limits_document(row.member),
        "created_at": documents.iso(row.created_at),
        "updated_at": documents.iso(row.updated_at),
    }


def details_document(row: GroupRow, views: Sequence[SessionView]) -> Json:
    """One group whose members are known, without them."""
    reached = next((v.member for v in views if v.member and v.member.reached), None)
    told = reached and {"session": reached.reached, "reason": render_words(reached.reached_why)}
    return {**group_document(row), "reached": told}


def results_document(row: GroupRow, views: Sequence[SessionView]) -> Json:
    """What the members of a group were given and recorded."""
    results = [
        {
            "number": view.member.number,
            "session": view.id,
            "state": view.word,
            "exit_code": view.exit_code,
            "values": json.loads(view.member.values),
            "recorded": json.loads(view.recorded),
        }
        for view in views
        if view.member
    ]
    objective = objective_of(row.member.objective)
    best = objective and objective.best((r["session"], r["recorded"]) for r in results)
    names = {
        kind: list(dict.fromkeys(name for result in results for name in result[kind]))
        for kind in ("values", "recorded")
    }
    return {**details_document(row, views), "best": best, **names, "results": results}


def group_state(states: dict[ProcessState, int]) -> ProcessState:
    """Of a group by its members': queued until one starts, live until all have ended; then failed
    if one has, else cancelled if one was."""
    if not states.keys() <= FINAL:
        begun = states.keys() - {ProcessState.QUEUED}
        return ProcessState.LIVE if begun else ProcessState.QUEUED
    order = (ProcessState.FAILED, ProcessState.CANCELLED, ProcessState.COMPLETED)
    return next(state for state in order if state in states)


__all__ = [
    "GroupDesk",
    "details_document",
    "group_document",
    "group_state",
    "results_document",
]
