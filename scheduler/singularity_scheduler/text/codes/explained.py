"""What is said of a session besides its reason: what it waits for, who goes before it, what was
taken from it. One function for each code; its arguments are those of the code."""

from __future__ import annotations

from singularity_scheduler.client.words import duration, size
from singularity_scheduler.text.meanings import PRECEDENCE
from singularity_scheduler.text.phrases import count, holder, listed, needed, short, stored
from singularity_scheduler.text.phrases import part as part_of
from singularity_scheduler.text.said import Said

Named = tuple[tuple[str, str], ...]
"""Sessions by their labels and tiers."""

# -- its place ------------------------------------------------------------------------------


def place_for_devices(place: int, tier: str, waiting_s: float) -> str:
    waits = f", waiting for {duration(waiting_s)}" if waiting_s >= 1 else ""
    return f"place {place} of the queue for {tier}{waits}"


def place_for_nodes(place: int) -> str:
    return f"place {place} of the queue for nodes"


def needs_and_place(least: int, most: int, place: int) -> str:
    return f"it needs {needed(least, most)} and is at place {place} of the queue"


def goes_after(before: tuple[tuple[str, str, str], ...], more: int, looked_at: int) -> str:
    """`before`: the first of those before it, each with its tier and the rule by which it goes
    first; `more`: others that go before it; `looked_at`: how many are looked at first."""
    named = [
        f"{who} ({tier}, {PRECEDENCE[rule].format(looked_at=looked_at)})"
        for who, tier, rule in before
    ]
    rest = f" and {more} more" if more else ""
    return f"before it: {', '.join(named)}{rest}"


# -- what it waits for ----------------------------------------------------------------------


def drained_there(devices: tuple[str, ...]) -> str:
    return f"drained: {', '.join(devices)}"


def used_there(holders: tuple[tuple[str, str, str, str], ...]) -> str:
    """`holders`: device, session, its tier, and whether it works."""
    return f"in use: {', '.join(holder(*one) for one in holders)}"


def free_there(devices: tuple[str, ...], part: bool) -> str:
    """`part`: whether it is one of a gang, which says itself why it does not have them."""
    but = "" if part else " but not enough or kept for who is before it"
    return f"free{but}: {', '.join(devices)}"


def group_is_full(running: int) -> str:
    return f"{running} of its group run now"


def starts_after(running: Named, more: int) -> str:
    """`running`: some of those that have to end first, `more`: others."""
    names = ", ".join(f"{who} ({tier})" for who, tier in running)
    rest = f" and {more} more" if more else ""
    return f"it starts when there is room after: {names}{rest}"


def parts_go_together() -> str:
    return "all parts of its gang go on together"


def other_part_is(part: int, node: str, word: str) -> str:
    """`word`: its state."""
    return f"{part_of(part)} on node {node} is {word}"


def now(why: Said) -> str:
    return f"now: {why}"


# -- what was taken from it -----------------------------------------------------------------


def by_rule(rule: str) -> str:
    return f"rule {rule}"


def before_that(why: Said, rule: str) -> str:
    return f"before that: {why.brief} (rule {rule})"


def goes_to_store() -> str:
    return "everything of it is on its way to the store"


def is_in_checkpoint(name: str, stored_bytes: int, age_s: float) -> str:
    what = f"{size(stored_bytes)}, {duration(age_s)} old"
    return f"everything of it is in {stored(name)} ({what})"


def is_in_memory(node: str, done: bool) -> str:
    verb = "is kept" if done else "is being saved"
    return f"its device state {verb} in the memory of node {node}"


# -- while it rests -------------------------------------------------------------------------


def is_kept_alive(left_s: float) -> str:
    return (
        f"It is kept alive for another {short(left_s)}: until then it is not parked for being "
        "idle, but a higher tier, or one of its tier that was served less, still goes first"
    )


def still_busy() -> str:
    return "Its cell has ended, but calls reached its devices until now: it still counts as busy"


def rests(
    idle: bool, gives_in_s: float | None, parks_in_s: float | None, grows_to: int | None
) -> str:
    """`idle`: it gives its devices to others, in `gives_in_s` (None: at once); `parks_in_s`: when
    it is parked by itself, None: never; `grows_to`: what its next cell gets, None: what it has."""
    parts = []
    if idle:
        then = f" in {short(gives_in_s)} or later" if gives_in_s is not None else ""
        parts.append(f"it gives its devices to the next session that needs them{then}")
    if parks_in_s is not None:
        parts.append(f"it is parked by itself in {short(parks_in_s)} (idle_soft_s)")
    if grows_to is not None:
        most = count(grows_to)
        parts.append(f"with its next cell it gets up to {most}, as many as are free then")
    what = "It is idle" if idle else "No call reaches its devices"
    return f"{what}, so {listed(tuple(parts))}"
