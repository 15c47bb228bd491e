"""Reasons as the API gives them beside their sentences. Pure."""

from __future__ import annotations

from typing import Any

from singularity_scheduler.core.reasons.reason import Reason, to_json


def reason_facts(why: Reason) -> dict[str, Any]:
    """Return the code of a reason and its arguments, as the API gives them beside its sentence."""
    told = to_json(why)
    return {"reason_code": told["code"], "reason_args": told["args"]}
