"""The reference page of reasons, for docs/generate.py."""

from __future__ import annotations

import inspect
from typing import Any

from generate_text import table

SAMPLES: dict[str, Any] = {
    "after": ("called", {"by": "ada", "name": None}),
    "after_s": 10.0,
    "age_s": 300.0,
    "asked_by": "ada",
    "at_once": 4,
    "attempts": 3,
    "back": ("weights",),
    "basis": "certain",
    "before": (("bob/eval", "premium", "tier"),),
    "below": "basic",
    "both": "standard",
    "by": "ada",
    "called": True,
    "cluster": "east",
    "condition": "loss < 0.1",
    "count": 2,
    "counts": (1, 2, 4),
    "damaged": "",
    "deaths": 3,
    "demand": "1 CPU, 1 MiB, 1 device",
    "device": "cuda:0",
    "devices": ("cuda:0", "cuda:1"),
    "difference": "has another processor (aarch64 and not x86_64)",
    "discard": False,
    "done": 1,
    "each": (("in_use", {"node": "node-1"}), ("no_answer", {"node": "node-2"})),
    "event": "park",
    "exit_code": 1,
    "first": ("0f3a5c7e", "0f3a5c9b"),
    "for_s": 3600.0,
    "fractions": (0.5, 0.9, 0.0),
    "given": "-1",
    "gives_in_s": None,
    "grows_to": None,
    "has": 2,
    "hashes": 12,
    "held_by": None,
    "here": "node-1",
    "high": 86400.0,
    "high_s": 180.0,
    "holder": "bob/eval",
    "holder_tier": "basic",
    "holders": (("cpu:0", "bob/eval", "premium", "busy"),),
    "how": ("exited", {"exit_code": -9, "sentence": ""}),
    "idle": True,
    "in_s": 120.0,
    "keeps": ("grace", {"limit_s": 30.0}),
    "key": "run.timeout_s",
    "kib": 64,
    "kind": "number",
    "known": ("run", "kind"),
    "largest": 4,
    "least": 1,
    "least_key": "min_instance_type_count",
    "left_s": 600.0,
    "lent": "vision",
    "level": "device",
    "limit_s": 600.0,
    "locations": ("east", "west"),
    "longer": 4,
    "longest_s": 50.0,
    "looked_at": 16,
    "lost": ("1 open socket",),
    "low": 0.0,
    "low_s": 20.0,
    "member": "ada/train",
    "members": 20,
    "more": 3,
    "most": 1,
    "most_key": "max_instance_type_count",
    "ms": 1200.0,
    "name": "good",
    "near": "node-2",
    "needs": 2,
    "newest": "good",
    "node": "node-2",
    "nodes": 4,
    "number": 2,
    "of": ("cancelled", {"by": "ada", "why": ""}),
    "open": ("standard", "basic"),
    "operation": "aten::mm",
    "other": "older",
    "output": "/home/ada/out.ipynb",
    "parameter": "idle_soft_s",
    "parent": "europe",
    "parks_in_s": 600.0,
    "part": 1,
    "parts": 4,
    "physical": 1,
    "place": 2,
    "places": ("west", "europe", "west"),
    "priorities": (),
    "priority_rank": 1,
    "promised_to": "premium",
    "quiet_s": 900.0,
    "quota": 2,
    "records": 12,
    "region": "europe",
    "rolled_back": False,
    "rule": "preempt.tier",
    "running": (("bob/eval", "premium"),),
    "runs": True,
    "samples": 12,
    "saved": True,
    "seconds": 300.0,
    "sentence": "the disk is full",
    "session": "0f3a5c7e9b1d",
    "share": 0.5,
    "share_milli": 1500,
    "silent_s": 90.0,
    "since_s": 7200.0,
    "source": "ada/train",
    "source_id": "0f3a5c7e9b1d",
    "start": "none",
    "state": "draining",
    "step": "attach",
    "steps": 100,
    "stored_bytes": 2**30,
    "story": ("held --park--> parking",),
    "temperature_c": 95.0,
    "text": "its device proxy failed",
    "there": ("node-1", "node-2"),
    "tier": "premium",
    "tier_rank": 3,
    "tiers": ("basic", "standard"),
    "trouble": "criu is missing",
    "usable": 2,
    "used": 2.0,
    "user": "ada",
    "usual_s": 2.0,
    "value": 0.05,
    "verb": "undrain",
    "version": "0.2.0",
    "virtual": 2,
    "wait": "devices",
    "waited_s": 60.0,
    "waiter": "bob/eval",
    "waiter_tier": "premium",
    "waiting_s": 60.0,
    "wanted": 4,
    "what": "suspended",
    "who": "ada/train",
    "whole": 1000,
    "why": "a fan is broken",
    "word": "node-9",
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

_DRAINING = ("not_open", {"node": "node-2", "state": "draining", "by": "root", "why": "a fan"})
_ATTACH = ("step_takes", {"step": "attach", "usual_s": 2.0, "node": "node-2", "samples": 12})

SAMPLES_OF: dict[str, dict[str, Any]] = {
    "cancelled": {"why": "maintenance tonight"},
    "cancelled_with_group": {"why": _LATE},
    "checkpoint_due": {"steps": None},
    "closed": {"why": ""},
    "condition_met": {
        "why": ("figure_in", {"name": "loss", "value": 0.05, "number": 2, "members": 20})
    },
    "figure_in": {"name": "loss"},
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
    **{
        code: {"word": word, "near": None, "there": there}
        for code, word, there in (
            ("no_such_cluster", "mars", ("east", "west")),
            ("no_such_location", "mars", ("east", "west")),
            ("no_such_place", "mars", ("east", "west")),
            ("no_such_virtual_cluster", "vison", ()),
        )
    },
    "cannot_be_said": {"why": ("no_node_takes_it", {})},
    "cannot_be_stored": {"why": _DRAINING, "trouble": "criu is missing"},
    "cannot_go_to_cluster": {"why": ("never_answered", {})},
    "cannot_go_to_node": {"why": ("no_answer", {"node": "node-2"})},
    "before_that": {"why": _TAKEN},
    "devices_are_freed": {"why": _ATTACH},
    "devices_go_to_nobody": {"by": "root", "why": "a new kernel"},
    "device_is_drained": {"why": ("too_hot", {"temperature_c": 95.0})},
    "expected": {"after": ("is_asked_for", {}), "why": _ATTACH},
    "few_waits": {"samples": 2},
    "gang_not_standing": {"why": ("part_has_ended", {})},
    "goes_after": {"more": 2},
    "group_is_full": {"running": 4},
    "homeless": {"more": 0, "why": ("no_other_node", {})},
    "no_agent_is_connected": {"locations": ()},
    "no_node_is_open": {"locations": (), "each": (_DRAINING,)},
    "no_other_takes_it": {"by": "root", "why": "a new kernel"},
    "no_such_device": {"there": ("node-2/cuda:0",)},
    "no_such_checkpoint": {"word": "god", "near": "good"},
    "no_such_parameter": {"word": "idle_soft", "near": "idle_soft_s", "there": ()},
    "node_has_no_device": {"there": ("cuda:0", "cuda:1"), "devices": ("cuda:7",)},
    "not_a_place_name": {"word": "'a b'"},
    "not_moved": {"why": ("in_use", {"node": "node-2"})},
    "not_of_the_upgrade": {"near": None},
    "now": {"why": ("in_use", {"node": "node-2"})},
    "other_number_of_devices": {"most": 2},
    "other_part_is": {"word": "suspended"},
    "part_is": {"word": "suspended"},
    "part_not_moved": {"why": ("is_there_already", {})},
    "part_stays": {"why": ("stored_as_a_whole", {"part": 1, "parts": 4})},
    "place_lies_nowhere": {"place": "west"},
    "quota_out_of_range": {"quota": -1, "most": 1000000},
    "rests": {"gives_in_s": 20.0},
    "starts_after": {"more": 0},
    "upgrade": {"why": "a new kernel"},
    "when_there_is_room": {"why": _ATTACH},
    "xid": {"number": 79},
    "too_many_devices": {"number": 8, "locations": ()},
    "at_once_out_of_range": {"number": 4, "at_once": 9},
    "more_than_virtual": {"number": 4},
    "more_than_quota": {"number": 4},
    "negative_quota": {"number": -1},
    "node_without_devices": {"number": 0},
    "no_upgrade_under_way": {"state": None},
    "no_such_upgrade_state": {"state": "stopped"},
    "upgrade_under_way": {"state": "running", "number": 4},
    "cost_out_of_range": {"seconds": -1.0},
    "least_above_most": {"least": 4},
    "counts_do_not_rise": {"counts": (4, 2), "least": 2, "most": 4},
    "kept_for_too_long": {"for_s": 86400.0, "limit_s": 14400.0},
    "kept_for_long_already": {"for_s": 14400.0, "limit_s": 14400.0},
    "not_out_for_the_upgrade": {"state": "waiting"},
    "not_in_scale_policy": {"number": 3},
    "has_ended": {"state": "completed"},
    "too_few_nodes": {"number": 4, "locations": (), "most": 2},
    "too_few_open_nodes": {"number": 4},
    "unknown_key": {"given": "'rnu'", "near": "run"},
    "not_true_or_false": {"key": "stop_on_failure"},
    "path_not_absolute": {"key": "output", "given": "'a.ipynb'"},
    "path_not_printable": {"key": "output", "given": "'/a\\n'"},
    "not_finite": {"key": "parameters"},
    "not_with_a_command": {"key": "kernel"},
    "policy_is_no_object": {"key": "auto_scale_instance_type_count_set"},
    "policy_says_both": {"key": "auto_scale_instance_type_count_set"},
    "counts_are_no_list": {"key": "auto_scale_instance_type_count_set", "given": "[4, 2]"},
    "not_a_policy_number": {"key": "min_instance_type_count"},
    "group_too_large": {"number": 2000, "most": 1000},
    "values_too_large": {"kib": 2},
    "member_on_several_nodes": {"nodes": 2},
    "not_divisible": {"number": 3, "nodes": 2},
    "too_few_asked": {"number": 0},
    "too_many_asked": {"number": 8},
    "too_many_locations": {"number": 100, "most": 64},
    "policy_asks_for_more": {"least": 4, "most": 2},
    "not_a_session_name": {"most": 255},
    "nodes_out_of_range": {"most": 256, "given": "0"},
    "max_parallel_out_of_range": {"most": 1000, "given": "0"},
    "retries_out_of_range": {"most": 100},
    "timeout_out_of_range": {"most": 31536000},
    "share_of_several": {"given": "2"},
    **{
        code: {"given": given}
        for code, given in (
            ("devices_not_whole", "'two'"),
            ("location_twice", "'west'"),
            ("locations_are_no_list", "'west'"),
            ("not_a_command", "''"),
            ("not_a_condition", "'loss small'"),
            ("not_a_goal", "'find'"),
            ("not_a_kernel", "'a b'"),
            ("not_a_kernel_id", "'a b'"),
            ("not_a_parameter_name", "'a b'"),
            ("not_a_share", "2"),
            ("not_a_variable", "'A=B'"),
            ("not_a_virtual_cluster", "'a b'"),
            ("no_such_device_here", "'cuda:9'"),
            ("unknown_kind", "'daemon'"),
            ("unknown_launch_mode", "'jail'"),
            ("unknown_priority", "'urgent'"),
            ("unknown_tier", "'gold'"),
        )
    },
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
    from singularity_scheduler.core.reasons.reason import because
    from singularity_scheduler.text.reasons import CODES

    args = {}
    for name, parameter in inspect.signature(CODES[code]).parameters.items():
        value = SAMPLES_OF.get(code, {}).get(name, SAMPLES.get(name))
        annotation = str(parameter.annotation)
        if annotation.startswith("tuple[Said"):
            value = tuple(because(code, **args) for code, args in value)
        elif "Said" in annotation and isinstance(value, tuple):
            value = because(value[0], **value[1])
        assert value is not None or "None" in annotation, f"{code} has no example of {name}"
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
            "[REST API](rest.md). So it is with what is planned for a session, what an estimate is "
            "based on (both beside `why`), and with what the scheduler refuses (beside `detail`). "
            "Programs read the code and the arguments; the sentence is for "
            "people and may change.\n",
            "These arguments mean the same in every code: `by` is who did it (the label of a "
            "session, or a person; null or missing: the scheduler by itself), `tier` the tier that "
            "devices were taken for, `after` the reason that this one goes on from, `of` the "
            "reason of another part of the gang. A reason within a reason is an object with "
            "`code` and `args`. Lengths of time are in seconds (`..._s`) or milliseconds (`ms`).\n",
            table(("code", "arguments", "reads like"), rows),
        ]
    )
