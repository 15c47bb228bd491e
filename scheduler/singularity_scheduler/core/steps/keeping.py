"""Sessions that somebody keeps alive: they rest, and have their devices all the same. Pure.

A kept session is not parked by itself, and nobody takes its devices because it is idle: it counts
as a busy one. A higher tier still goes first, and so does one of its tier that was served less. So
that nobody has devices for ever by asking again and again, all the times for which a session is
kept while nothing uses its devices are `keep_max_s` together; using them begins anew.
"""

from __future__ import annotations

from dataclasses import replace

from singularity_proxy.errors import BadRequest, Conflict, Forbidden

from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values.asks import KeepAsked
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.states import DeviceState


def end_of(view: SessionView, parameters: Parameters) -> float | None:
    """Until when it is kept; None: nobody keeps it. A ceiling that was lowered counts at once."""
    if view.keep_until is None or view.keep_from is None:
        return None
    return min(view.keep_until, view.keep_from + parameters.keep_max_s)


def kept(view: SessionView, parameters: Parameters, now: float) -> bool:
    """Whether somebody keeps it alive now."""
    end = end_of(view, parameters)
    return end is not None and now < end


def asked(draft: Draft, view: SessionView, event: KeepAsked) -> None:
    """Somebody keeps it for `for_s` from now on, in place of what was asked before; 0: no longer.

    Raises `Forbidden` where nobody may, `BadRequest` for more than `keep_max_s`, `Conflict` when it
    was kept for long enough already.
    """
    if not event.for_s:
        if view.keep_until is not None:
            view = replace(view, keep_until=None)
            draft.remark(view, reasons.keep_ended(event.by), "user.keep")
        return
    longest = draft.state.parameters.keep_max_s
    if not longest:
        raise refuse(Forbidden, because("nobody_may_keep", who=view.label))
    if event.for_s > longest:
        raise refuse(
            BadRequest,
            because("kept_for_too_long", who=view.label, for_s=event.for_s, limit_s=longest),
            for_s=event.for_s,
            keep_max_s=longest,
        )
    begun = _begun(view)
    begun = draft.now if begun is None else begun
    left = begun + longest - draft.now
    if event.for_s > left:
        raise refuse(
            Conflict,
            because(
                "kept_for_long_already",
                who=view.label,
                for_s=event.for_s,
                since_s=draft.now - begun,
                left_s=left,
                limit_s=longest,
            ),
            session=view.id,
            left_s=max(0.0, left),
        )
    view = replace(view, keep_until=draft.now + event.for_s, keep_from=begun)
    draft.remark(view, reasons.kept(event.by, event.for_s), "user.keep")


def _begun(view: SessionView) -> float | None:
    """Since when it has been kept with nothing using the devices that it has; None: it was not, or
    they were used, or given back, since."""
    held = view.device_state is DeviceState.HELD and view.held_since is not None
    if view.keep_from is None or view.quiet_since is None or not held:
        return None
    return view.keep_from if view.quiet_since <= view.keep_from else None


def expire(draft: Draft, node_id: str) -> None:
    """What is over is over; called as time goes by, before idle devices are looked for."""
    node = draft.state.nodes.get(node_id)
    for sid in sorted(node.kept if node else ()):
        view = draft.get(sid)
        if view is None or view.final or kept(view, draft.state.parameters, draft.now):
            continue
        view = replace(view, keep_until=None)
        draft.remark(view, reasons.keep_over(), "user.keep")
