"""On how many physical devices a session runs its virtual ones, and on which. Pure.

User code is written for the virtual devices of its session, whose number never changes. A session
with a scale policy is *elastic*: it is started on fewer physical devices when no more are free, is
shrunk before others have to be preempted, and grows back when devices are free and it works, or
else with its next cell (`turns`). Anybody
who may act on a session may also ask for a number (`resize`): it is then the most that it gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from singularity_proxy.errors import BadRequest, Conflict

from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons.reason import Reason, because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.state import queue
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.layout import kept, layout, told
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import DeviceEvent, DeviceState

# -- what is allowed ------------------------------------------------------------------------


def allowed(view: SessionView) -> tuple[int, ...]:
    """The numbers of physical devices that somebody may ask for, ascending."""
    if view.scale is None:
        return tuple(range(1, view.virtual_devices + 1))
    least, most = view.scale.least, view.scale.most
    counts = view.scale.counts or range(least, most + 1)
    return tuple(sorted({*(c for c in counts if least <= c <= most), most}))


def asked(draft: Draft, view: SessionView, event: ev.ResizeAsked) -> None:
    """Somebody wants it to run on so many physical devices."""
    count = _allowed(draft, view, event.devices)
    if view.device_state is DeviceState.RESIZING:
        raise refuse(
            Conflict,
            because("is_being_resized", who=view.label),
            session=view.id,
            state=view.word,
        )
    if view.device_state in (DeviceState.ATTACHING, DeviceState.PARKING) or view.in_flight:
        raise refuse(
            Conflict,
            because("changing_devices", who=view.label),
            session=view.id,
            state=view.word,
        )
    wish = 0 if count == allowed(view)[-1] else count
    has = len(view.physical)
    if view.device_state is not DeviceState.HELD:
        draft.note(replace(view, wish=wish), reasons.wished(view, event.by, count), "user.resize")
    elif count == has:
        draft.remark(replace(view, wish=wish), reasons.has_already(view, event.by), "user.resize")
    else:
        draft.answering(view)
        devices = kept(view.devices, count) if count < has else _more(draft, view, count)
        if devices:
            reason = reasons.resizing(view, event.by, len(devices))
            view = replace(view, wish=wish, asked=True)
            begin(draft, view, devices, reason, "user.resize")
        else:
            reason = reasons.wished(view, event.by, count)
            draft.note(replace(view, wish=wish, scaled_at=None), reason, "user.resize")


def _allowed(draft: Draft, view: SessionView, count: int) -> int:
    """`count`, if the session may run on so many; refuses it with what can be asked for."""
    found = allowed(view)
    if not 1 <= count <= view.virtual_devices:
        raise refuse(
            BadRequest,
            because(
                "more_than_virtual", who=view.label, virtual=view.virtual_devices, number=count
            ),
            devices=count,
            largest=view.virtual_devices,
        )
    if count not in found:
        raise refuse(
            BadRequest,
            because("not_in_scale_policy", who=view.label, number=count, counts=found),
            devices=count,
            counts=list(found),
        )
    there = len(draft.node(view.node).devices)
    if 0 < there < count:
        raise refuse(
            BadRequest,
            because("node_is_too_small", node=view.node, who=view.label, has=there, number=count),
            devices=count,
            node=view.node,
        )
    return count


def _more(draft: Draft, view: SessionView, count: int) -> tuple[str, ...]:
    """What it has and enough of the free devices of its node to have `count`; (): they are not
    free, or somebody waits for them."""
    usable = draft.usable(view.node)
    free = [device for device, holder in usable.items() if holder is None]
    more = count - len(view.physical)
    cluster = draft.cluster(view.virtual_cluster)
    beyond = cluster is not None and (
        not cluster.may_borrow
        and draft.held_of(view.virtual_cluster) + more > cluster.quota_devices
    )
    if len(free) < more or beyond or any(draft.waiting(view.node)):
        return ()
    return (*view.physical, *free[:more])


def at_least(view: SessionView, least: int) -> SessionView:
    """`view`, which is not tried on fewer devices any more: its ranks hold so many different parts.
    0: nobody knows how many."""
    if not least:
        return view
    wish = max(view.wish, least) if view.wish else 0
    if view.scale is None or view.scale.least >= least:
        return replace(view, wish=wish)
    scale = replace(view.scale, least=min(least, view.scale.most))
    return replace(view, wish=wish, scale=scale)


def rested(draft: Draft, view: SessionView) -> bool:
    """Whether it has been idle for so long that it grows with its next cell, however lately the
    number of its devices was changed."""
    since = view.idle_since if view.idle else None
    return since is not None and draft.now - since >= draft.state.parameters.idle_grace_s


# -- steps ----------------------------------------------------------------------------------


def begin(
    draft: Draft,
    view: SessionView,
    devices: Iterable[str],
    reason: Reason,
    rule: str,
) -> SessionView:
    """Step to `resizing` under the next epoch and command it. Until it is done the session has its
    old devices and its new ones."""
    target = layout(view.virtual_devices, tuple(devices), view.devices)
    view = draft.step(
        view,
        DeviceEvent.RESIZE,
        reason,
        rule,
        resizing=target,
        epoch=view.epoch + 1,
        seq=view.seq + 1,
    )
    draft.actions.append(queue.resize_action(view, reason, rule))
    return view


def done(draft: Draft, view: SessionView, event: ev.Resized) -> SessionView:
    """It goes on with its new devices."""
    fewer = len(set(view.resizing)) < len(view.physical)
    return draft.step(
        view,
        DeviceEvent.RESIZED,
        view.why if fewer else reasons.resized(view),  # why, for as long as it has fewer
        "device.resized",
        devices=told(view.resizing, event.devices),
        resizing=(),
        asked=False,
        scaled_at=draft.now,
    )


def failed(draft: Draft, view: SessionView, event: ev.ResizeFailed) -> SessionView:
    """It goes on with what it had, and so it does if somebody asked for something else; what the
    scheduler wanted by itself is not tried again for a while."""
    has = len(view.physical)
    if view.asked:
        everything = view.scale is not None or has == view.virtual_devices
        view = replace(view, wish=0 if everything else has)
    return draft.step(
        at_least(view, min(event.least, has)),
        DeviceEvent.RESIZE_FAILED,
        reasons.resize_failed(view, event.sentence),
        "device.resize_failed",
        resizing=(),
        asked=False,
        scaled_at=draft.now,
    )
