"""Batch runs that a session starts from a cell (`%%singularity submit`), through its agent.

They are its user's, as a fork is, and get nothing that the user could not submit. The session may
look at those that it started itself, and at no others.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import BadRequest, NotFound

from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Kind
from singularity_scheduler.requests.spec import parse_spec
from singularity_scheduler.service.api import checks

if TYPE_CHECKING:
    from singularity_scheduler.service.controller import Controller

Json = dict[str, Any]

FROM = "submitted_from"
"""In the metadata of a run: the session whose cell started it."""

MOST_WAIT_S = 60.0


async def submit(controller: Controller, view: SessionView, args: Json) -> Json:
    """Start the run that `args["spec"]` describes, once for each `args["key"]`."""
    spec, key = args.get("spec"), args.get("key")
    if not isinstance(spec, dict) or not (key is None or isinstance(key, str)):
        raise BadRequest("a run is submitted with its spec, and a key to do so once")
    parsed = parse_spec(spec, largest=controller.largest)
    if parsed.run is None or parsed.kind is not Kind.BATCH:
        raise BadRequest("a session only starts batch runs: give spec.run")
    metadata = {**json.loads(parsed.run.metadata), FROM: view.id}
    run = replace(parsed.run, metadata=json.dumps(metadata))
    try:
        made, _ = await controller.desk.create(
            view.user,
            replace(parsed, run=run),
            {},
            server=view.server,
            key=key,
            fingerprint=checks.fingerprint("submit", view.id, spec),
        )
    except Exception as error:
        controller.on_magic("create", view, error)
        raise
    controller.on_magic("create", made, None)
    return _told(controller, made)


async def look(controller: Controller, view: SessionView, args: Json) -> Json:
    """How a run is that this session started: as soon as it is otherwise than `args["seen"]`, but
    after `args["wait_s"]` at the latest."""
    session, seen, wait_s = args.get("run"), args.get("seen"), args.get("wait_s", 0)
    if not isinstance(session, str) or isinstance(wait_s, bool):
        raise BadRequest("which run is looked at must be said: run")
    if not isinstance(wait_s, int | float) or not 0 <= wait_s <= MOST_WAIT_S:
        raise BadRequest(f"wait_s must be a number of seconds from 0 to {MOST_WAIT_S:g}")
    found = await controller.find(session)
    if found.user != view.user or not _started(view, found):
        raise NotFound(f"there is no run {session} that this session started", session=session)

    def changed() -> bool:
        now = controller.state.sessions.get(session)
        return now is None or _mark(now) != seen

    await controller.until(changed, float(wait_s))
    return _told(controller, await controller.find(session))


def _started(view: SessionView, run: SessionView) -> bool:
    return run.run is not None and json.loads(run.run.metadata).get(FROM) == view.id


def _told(controller: Controller, run: SessionView) -> Json:
    return {"run": controller.status(run), "seen": _mark(run)}


def _mark(run: SessionView) -> str:
    return f"{run.updated_at!r}/{run.seq}/{run.word}"
