"""Changes of the policy's parameters. Part of `decide` (see `policy`)."""

from __future__ import annotations

from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values.administration import ParametersAsked, Setting
from singularity_scheduler.core.values.parameters import known


def asked(draft: Draft, event: ParametersAsked) -> None:
    """All of the changes or none; each that changes something is one line of the log."""
    admin = draft.state.admin
    settings = dict(admin.settings)
    for name, value in event.changes:
        if value is None:
            settings.pop(known(name), None)
        else:
            settings[known(name)] = value
    before = draft.state.parameters.as_dict()
    after = admin.defaults.changed(**settings).as_dict()
    for name in dict.fromkeys(name for name, _ in event.changes):
        kept = after[name] if name in settings else None
        if kept == admin.settings.get(name):
            continue
        draft.settings[name] = Setting(name, kept)
        draft.order(
            event.by,
            "set" if kept is not None else "reset",
            name,
            before[name],
            after[name],
            event.reason,
            "parameter.set",
        )
