"""The reference page of reasons, for docs/generate.py."""

from __future__ import annotations

import inspect
from typing import Any

from generate_text import table

SAMPLES: dict[str, Any] = {
    "after": ("called", {"by": "ada", "name": None}),
    "age_s": 300.0,
    "asked_by": "ada",
    "at_once": 4,
    "attempts": 3,
    "back": ("weights",),
    "below": "basic",
    "both": "standard",
    "by": "ada",
    "called": True,
    "cluster": "east",
    "condition": "loss < 0.1",
    "deaths": 3,
    "device": "cuda:0",
    "difference": "has another processor (aarch64 and not x86_64)",
    "devices": ("cuda:0", "cuda:1"),
    "discard": False,
    "each": (("in_use", {"node": "node-1"}), ("no_answer", {"node": "node-2"})),
    "exit_code": 1,
    "for_s": 3600.0,
    "has": 2,
    "hashes": 12,
    "held_by": None,
    "here": "node-1",
    "how": ("exited", {"exit_code": -9, "sentence": ""}),
    "in_s": 120.0,
    "least": 1,
    "lent": "vision",
    "level": "device",
    "limit_s": 600.0,
    "locations": ("east", "west"),
    "lost": ("1 open socket",),
    "member": "ada/train",
    "members": 20,
    "most": 1,
    "more": 3,
    "ms": 1200.0,
    "name": "good",
    "needs": 2,
    "node": "node-2",
    "number": 2,
    "of": ("cancelled", {"by": "ada", "why": ""}),
    "operation": "aten::mm",
    "output": "/home/ada/out.ipynb",
    "part": 1,
    "parts": 4,
    "physical": 1,
    "priorities": (),
    "promised_to": "premium",
    "quiet_s": 900.0,
    "quota": 2,
    "records": 12,
    "region": "europe",
    "rolled_back": False,
    "runs": True,
    "saved": True,
    "seconds": 300.0,
    "sentence": "the disk is full",
    "silent_s": 90.0,
    "source": "ada/train",
    "source_id": "0f3a5c7e9b1d",
    "state": "draining",
    "steps": 100,
    "stored_bytes": 2**30,
    "text": "its device proxy failed",
    "tier": "premium",
    "tiers": ("basic", "standard"),
    "trouble": "criu is missing",
    "usable": 2,
    "used": 2.0,
    "virtual": 2,
    "waiter": "bob/eval",
    "waiter_tier": "premium",
    "wanted": 4,
    "why": "a fan is broken",
}
"""An example of each argument; a reason within a reason as (code, arguments)."""

_ENDED = ("exited", {"exit_code": 1, "sentence": ""})
_DRAINED = (
    "drained_moves",
    {"node": "node-2", "state": "draining", "by": "root", "why": "a new kernel"},
)
_TAKEN = ("paused_for_slice", {"by": "bob/eval"})
_LATE = ("group_late", {"limit_s": 600.0})
_QUOTA = ("quota_used", {"cluster": "vision", "used": 2.0, "quota": 2})
_SILENT = ("node_silent", {"node": "node-2", "silent_s": 90.0})

SAMPLES_OF: dict[str, dict[str, Any]] = {
    "cancelled": {"why": "maintenance tonight"},
    "cancelled_with_group": {"why": _LATE},
    "checkpoint_due": {"steps": None},
    "closed": {"why": ""},
    "condition_met": {"why": "loss is 0.05 in member 2 of 20"},
    "ended_kept": {"after": _ENDED},
    "ended_not_kept": {"after": _ENDED},
    "ended_part": {"after": _ENDED},
    "exited": {"sentence": ""},
    "hibernating": {"sentence": "its Jupyter server is gone"},
    "leaves_in_time": {"after": _DRAINED},
    "lost_part": {"why": _SILENT},
    "lost_self": {"why": _SILENT},
    "not_tried_again": {"after": _ENDED},
    "part_ended": {"of": _ENDED},
    "part_paused": {"of": _TAKEN},
    "recovered": {"why": "did not answer"},
    "set_down": {"why": "it was out of memory"},
    "squashing_off": {"why": "their contents are not the same"},
    "stays_suspended": {"why": ""},
    "suspending": {"why": "its server was stopped"},
    "waits_for_quota": {"why": _QUOTA},
    "waits_for_room": {"why": ("in_use", {"node": "node-2"})},
    "not_open": {"by": "root", "why": "a new kernel"},
    "several": {"more": 0},
    "too_few_devices": {"usable": 1},
    "with_part": {"of": ("suspend_failed", {"sentence": "the disk is full"})},
    **{
        code: {"by": "bob/eval"}
        for code in (
            "paused_borrower",
            "paused_for_guarantee",
            "paused_for_long_wait",
            "paused_for_slice",
            "paused_for_turn",
            "paused_idle",
            "paused_lower",
        )
    },
}
"""Examples of arguments that are others for some codes."""


def sample_reason(code: str) -> Any:
    """Return an example of the reason `code`."""
    from singularity_scheduler.core.reason import because
    from singularity_scheduler.text.reasons import CODES

    args = {}
    for name, parameter in inspect.signature(CODES[code]).parameters.items():
        value = SAMPLES_OF.get(code, {}).get(name, SAMPLES.get(name))
        annotation = str(parameter.annotation)
        if annotation.startswith("tuple[Said"):
            value = tuple(because(code, **args) for code, args in value)
        elif "Said" in annotation and isinstance(value, tuple):
            value = because(value[0], **value[1])
        args[name] = value
    return because(code, **args)


def reasons_page() -> str:
    """Return the page: each code with its arguments and an example of its sentence."""
    from singularity_scheduler.text.reasons import CODES, render

    rows: list[tuple[object, ...]] = []
    for code in sorted(CODES):
        names = ", ".join(f"`{name}`" for name in inspect.signature(CODES[code]).parameters)
        rows.append((f"`{code}`", names, render(sample_reason(code))))
    return "\n".join(
        [
            "# Reasons\n",
            "Why a session is in its state, and why each line of its history was written, as data: "
            "`reason_code` and `reason_args` stand beside the sentence `reason` in the "
            "[REST API](rest.md). Programs read the code and the arguments; the sentence is for "
            "people and may change.\n",
            "These arguments mean the same in every code: `by` is who did it (the label of a "
            "session, or a person; null or missing: the scheduler by itself), `tier` the tier that "
            "devices were taken for, `after` the reason that this one goes on from, `of` the "
            "reason of another part of the gang. A reason within a reason is an object with "
            "`code` and `args`. Lengths of time are in seconds (`..._s`) or milliseconds (`ms`).\n",
            table(("code", "arguments", "reads like"), rows),
        ]
    )
