"""What a request may say of the goal of a group. Pure; `core.goals` follows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singularity_proxy.errors import BadRequest

from singularity_scheduler.core.goals import GOALS, Condition, Objective, condition_of


def parse_condition(text: str) -> Condition:
    """The condition in `text`; `BadRequest` for anything else."""
    found = condition_of(text)
    if found is None:
        raise BadRequest(
            f"stop_when must be a name, a comparison and a number, such as loss<0.01, not "
            f"{text[:60]!r}"
        )
    return found


def parse_objective(said: Any) -> Objective | None:
    """The objective in ``{"primary_metric", "goal"}``; None for None."""
    if said is None:
        return None
    if not isinstance(said, Mapping) or set(said) != {"primary_metric", "goal"}:
        raise BadRequest("objective must have primary_metric and goal, and nothing else")
    metric, goal = said["primary_metric"], str(said["goal"]).lower()
    if goal not in GOALS:
        raise BadRequest(f"the goal of an objective is minimize or maximize, not {said['goal']!r}")
    if not isinstance(metric, str) or not metric or len(metric) > 64 or not metric.isprintable():
        raise BadRequest("primary_metric must be the name of a recorded value")
    return Objective(metric, goal)
