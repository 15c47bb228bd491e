"""How much of the service that its tier promises each session got (see `allocation.sla`), and how
much device time it has had in all. Pure.

A session wants service while it has work for devices: it waits for some, computes on some, or is
on its way to where it will. It gets service while it holds them. What somebody took from it on
purpose (`preempt`, `park`, `suspend`) is not wanted until somebody resumes it.
"""

from __future__ import annotations

from dataclasses import replace

from singularity_scheduler.core.allocation.claims import Claim
from singularity_scheduler.core.allocation.sla import Account
from singularity_scheduler.core.values.model import SessionView, Share, changed
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.states import DeviceState, ProcessState

from .draft import Draft

_COMING = (DeviceState.WAITING, DeviceState.ATTACHING, DeviceState.RESIZING)

UNMEASURED_S = 1.0
"""What a park or an attach is taken to last before one was seen."""


def account_of(parameters: Parameters) -> Account:
    """An empty account of what these parameters promise."""
    fractions = (
        parameters.basic_fraction,
        parameters.standard_fraction,
        parameters.premium_fraction,
    )
    return Account(parameters.sla_window_s, fractions)


def served(view: SessionView) -> bool:
    """Whether it has devices that it can use."""
    return view.device_state is DeviceState.HELD and view.process_state is ProcessState.LIVE


def wants(view: SessionView) -> bool:
    """Whether it has work for devices."""
    if view.final or view.held_back:
        return False
    if view.pending:
        return True
    if view.process_state is ProcessState.SUSPENDED:
        return view.called and view.wants
    if view.device_state is DeviceState.HELD:
        return view.quiet_since is None
    if view.device_state in _COMING:
        return True
    return view.wants


def claim_of(view: SessionView, before: SessionView, now: float, account: Account) -> Claim:
    """The session as the engine knows one, with its share accounted up to `now`; it was as `before`
    until then. The windows that were completed meanwhile are counted in `account`."""
    share = before.share
    park_s, attach_s = view.park_s or UNMEASURED_S, view.attach_s or UNMEASURED_S
    claim = Claim(
        view.id,
        view.most,
        tier=view.tier.rank,
        priority=view.priority.rank,
        kind=view.kind.value,
        minimum=view.needs,
        virtual_cluster=view.virtual_cluster,
        costs=(park_s, attach_s, park_s + attach_s),
        share_milli=view.share_milli,
    )
    claim.attained, claim.mark = share.attained_device_s, share.at
    claim.sla_window, claim.sla_wanted, claim.sla_got = share.window, share.wanted_s, share.got_s
    if now <= share.at:
        return claim
    claim.count = len(before.physical) if served(before) else 0
    if wants(before):
        window = int(share.at // account.window_s)
        if claim.sla_window != window:
            account.close(claim)
            claim.sla_window = window
        claim.sla_on = True
    account.advance(claim, now)
    claim.sla_on = False
    window = int(now // account.window_s)
    if claim.sla_window != window:
        account.close(claim)
        claim.sla_window = window
    claim.count = 0
    if view.tier is not before.tier:
        claim.sla_wanted = claim.sla_got = 0.0
    return claim


def accounted(view: SessionView, now: float, parameters: Parameters) -> Share:
    """Its share with everything up to `now`, if it was as it is since it was accounted last."""
    share = view.share
    if now <= share.at:
        return share
    account = account_of(parameters)
    claim = claim_of(view, view, now, account)
    return changed(
        share,
        at=now,
        attained_device_s=claim.attained,
        window=claim.sla_window,
        wanted_s=claim.sla_wanted,
        got_s=claim.sla_got,
        windows=share.windows + account.windows[view.tier.rank],
        kept=share.kept + account.kept[view.tier.rank],
    )


def settle(draft: Draft) -> None:
    """Account the sessions that this decision changes, up to now; as its last step."""
    for sid, view in draft.changed.items():
        old = draft.state.sessions.get(sid)
        share = (
            changed(view.share, at=draft.now)
            if old is None
            else accounted(old, draft.now, draft.state.parameters)
        )
        if old is not None and old.tier is not view.tier:  # another promise, see `tiers`
            share = replace(share, wanted_s=0.0, got_s=0.0, windows=0, kept=0)
        draft.changed[sid] = changed(view, share=share)
