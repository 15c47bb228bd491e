"""Checkpoints of device state alone go back into the session that they are of, while that lives.
Pure.

Nothing about where the session is changes: its node is told what to put back, and says what came of
it. Tensors are known by numbers that count on as long as the session does, so only a checkpoint of
the same incarnation can be put back.
"""

from __future__ import annotations

from dataclasses import replace

from singularity_proxy.errors import Conflict

from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons.of_devices import name_of
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.state import checkpoints
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import CHANGING, DeviceState, ProcessState


def means(view: SessionView, word: str) -> bool:
    """Whether this is a checkpoint that is put back into a session that goes on. Raises what
    `checkpoints.find` raises."""
    reference = checkpoints.find(view, word)
    live = view.process_state is ProcessState.LIVE
    return live and reference.level == "device" and not reference.damaged


def asked(draft: Draft, view: SessionView, event: ev.RestoreAsked) -> None:
    reference = checkpoints.find(view, event.checkpoint)
    draft.answering(view)
    if view.leaving is not None or view.device_state in CHANGING:
        raise refuse(
            Conflict,
            because("changing_devices", who=view.label),
            session=view.id,
            state=view.word,
        )
    if not view.saved and view.device_state is not DeviceState.HELD:
        raise refuse(
            Conflict,
            because("nothing_to_replace", who=view.label),
            session=view.id,
            state=view.word,
        )
    if reference.incarnation != view.incarnation:
        raise refuse(
            Conflict,
            because(
                "other_tensors",
                name=name_of(reference),
                who=view.label,
                **checkpoints.instead(view, reference, draft.now),
            ),
            session=view.id,
            checkpoint=reference.id,
        )
    view = draft.note(
        replace(view, seq=view.seq + 1),
        move_reasons.putting_back(event.by, reference, event.discard),
        "user.restore",
    )
    draft.actions.append(
        ev.PutBack(
            view.id,
            view.node,
            view.why,
            "user.restore",
            view.epoch,
            view.seq,
            checkpoint=reference.id,
            discard=event.discard,
        )
    )


def done(draft: Draft, event: ev.ContentsBack) -> None:
    view = draft.get(event.session)
    if view is None or view.final:
        return
    if event.loss is None:
        reason = move_reasons.not_put_back(event.sentence)
    else:
        view = replace(view, loss=replace(event.loss, at=draft.now))
        reason = move_reasons.put_back(view, event.loss)
    draft.note(view, reason, "user.restored")
