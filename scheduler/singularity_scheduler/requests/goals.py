"""What a request may say of the goal of a group. Pure; `core.goals` follows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.steps.goals import GOALS, Condition, Objective, condition_of
from singularity_scheduler.text.errors import bad_request


def parse_condition(text: str) -> Condition:
    """The condition in `text`; `BadRequest` for anything else."""
    found = condition_of(text)
    if found is None:
        raise bad_request(because("not_a_condition", given=repr(text[:60])))
    return found


def parse_objective(said: Any) -> Objective | None:
    """The objective in ``{"primary_metric", "goal"}``; None for None."""
    if said is None:
        return None
    if not isinstance(said, Mapping) or set(said) != {"primary_metric", "goal"}:
        raise bad_request(because("not_an_objective"))
    metric, goal = said["primary_metric"], str(said["goal"]).lower()
    if goal not in GOALS:
        raise bad_request(because("not_a_goal", given=repr(said["goal"])))
    if not isinstance(metric, str) or not metric or len(metric) > 64 or not metric.isprintable():
        raise bad_request(because("not_a_metric"))
    return Objective(metric, goal)
