"""What node agents report about the device proxies of a session; see `policy`."""

from __future__ import annotations

from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.state import queue
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.states import DeviceState


def recovered(draft: Draft, event: ev.ProxyRecovered) -> None:
    if (view := draft.get(event.session)) and not view.final:
        draft.note(view, reasons.recovered(event.records, event.ms, event.why), "proxy.recovered")


def failed(draft: Draft, event: ev.ProxyFailed) -> None:
    view = draft.get(event.session)
    if view is None or view.final:
        return
    held = view.device_state is DeviceState.HELD and not view.in_flight
    if held and not event.left:
        queue.park(draft, view, run_reasons.said(event.sentence), "proxy.failed")
    else:
        draft.note(view, run_reasons.said(event.sentence), "proxy.failed")


def gave_up(draft: Draft, event: ev.ProxyGaveUp) -> None:
    if (view := draft.get(event.session)) and not view.final:
        draft.note(view, reasons.gave_up(event.operation, event.deaths), "proxy.gave_up")


def silent(draft: Draft, event: ev.ProxySilent) -> None:
    view = draft.get(event.session)
    if view and view.device_state is DeviceState.HELD and not view.final:
        draft.note(view, reasons.silent(event.limit_s), "proxy.silent")


def answers(draft: Draft, event: ev.ProxyAnswers) -> None:
    view = draft.get(event.session)
    if view and view.device_state is DeviceState.HELD and not view.final:
        draft.note(view, reasons.held(view, False), "proxy.answers")


def working(draft: Draft, event: ev.DeviceWorking) -> None:
    view = draft.get(event.session)
    if view and view.device_state is DeviceState.HELD and not view.final:
        reason = reasons.held(view, False)
        if event.seconds > 0:
            reason = reasons.working(event.operation, event.seconds)
        draft.note(view, reason, "device.working")


def squashing_off(draft: Draft, event: ev.SquashingOff) -> None:
    """Only said: it is not why the session is in its state."""
    if (view := draft.get(event.session)) and not view.final:
        draft.remark(view, reasons.squashing_off(event.why), "squashing.off")
