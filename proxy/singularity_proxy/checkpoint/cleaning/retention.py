"""Which checkpoints of a session stay. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.errors import BadRequest


@dataclass(frozen=True)
class Policy:
    """How many of the checkpoints that have no name stay: the newest `last`, and those that are not
    older than `max_age_s` seconds. None: no limit of that kind. With `named_last`, only so many of
    one name stay; without it all with a name do."""

    last: int | None = None
    max_age_s: float | None = None
    named_last: int | None = None

    def __post_init__(self) -> None:
        for name in ("last", "max_age_s", "named_last"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise BadRequest(f"{name} is {value}; it has to be 0 or more, or None for no limit")


def keep(checkpoints: Sequence[Summary], head: str | None, now: float, policy: Policy) -> set[str]:
    """Ids of the checkpoints that stay; the head's always does. `now` in seconds since 1970.

    A checkpoint without a name has to be within both limits.
    """
    newest_first = sorted(checkpoints, key=lambda c: (c.time, c.id), reverse=True)
    kept = {head} if head else set()
    unnamed = 0
    of_name: dict[str, int] = {}
    for checkpoint in newest_first:
        if checkpoint.name:
            of_name[checkpoint.name] = of_name.get(checkpoint.name, 0) + 1
            if policy.named_last is None or of_name[checkpoint.name] <= policy.named_last:
                kept.add(checkpoint.id)
            continue
        unnamed += 1
        few = policy.last is None or unnamed <= policy.last
        young = policy.max_age_s is None or now - checkpoint.time <= policy.max_age_s
        if few and young:
            kept.add(checkpoint.id)
    return kept & {c.id for c in checkpoints}
