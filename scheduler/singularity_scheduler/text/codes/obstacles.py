"""Reasons why something cannot be done now: a session waits for it, or it is refused. One function
for each code; its arguments are those of the code."""

from __future__ import annotations

from singularity_scheduler.text.phrases import count, duty, whole
from singularity_scheduler.text.phrases import part as part_of
from singularity_scheduler.text.said import Clauses, Said


def no_answer(node: str) -> str:
    return f"node {node} does not answer"


def not_allowed_there(
    node: str, cluster: str, region: str | None, locations: tuple[str, ...]
) -> str:
    """`region`: of that cluster, where it has another name."""
    where = f"cluster {cluster}{f' of region {region}' if region is not None else ''}"
    return f"node {node} is in {where}, and {_only(locations)}"


def _only(locations: tuple[str, ...]) -> str:
    return f"it may only be in {' or '.join(locations)}"


def not_open(node: str, state: str, by: str | None, why: Said | str) -> str:
    return f"node {node} {duty(state, by, why)}"


def no_images(node: str, trouble: str) -> str:
    return f"node {node} cannot bring processes back ({trouble})"


def other_store(node: str, here: str) -> str:
    return f"node {node} uses another store than node {here}"


def other_machine(node: str, difference: str) -> str:
    return f"node {node} {difference}"


def too_few_devices(node: str, usable: int, needs: int) -> str:
    return f"node {node} has {count(usable, 'usable device')} and it needs {needs}"


def full_of_runs(node: str) -> str:
    return f"the runs of node {node} leave it no room"


def in_use(node: str) -> str:
    return f"the devices of node {node} are in use by sessions that go before it"


def quota_used(cluster: str, used: float, quota: int) -> str:
    return f"virtual cluster '{cluster}' uses {used:g} of its {count(quota)} and may not borrow"


def quota_full_of_runs(cluster: str, used: float, quota: int) -> str:
    own = f"its {count(quota)}"
    return f"virtual cluster '{cluster}' runs with {used:g} of {own} and may not borrow"


def no_node() -> str:
    return "no node is there"


def no_node_allowed(locations: tuple[str, ...]) -> str:
    return f"no node is there, and {_only(locations)}"


def several(each: tuple[Said, ...], more: int) -> Clauses:
    """`more`: nodes of which nothing is said."""
    rest = (f"{more} other nodes cannot take it either",) if more else ()
    return (*(one.text for one in each), *rest)


def parts_without_nodes() -> str:
    return "not all parts of its gang have room on different nodes"


def no_other_node() -> str:
    return "there is no other"


def never_answered() -> str:
    return "no node of it has ever answered"


def may_only_be_in(locations: tuple[str, ...]) -> str:
    return _only(locations)


# -- of parts of gangs ----------------------------------------------------------------------


def stored_as_a_whole(part: int, parts: int) -> str:
    return f"it is {whole(part, parts)}, which is stored only as a whole, by suspend or checkpoint"


def is_there_already() -> str:
    return "it is there already"


def part_is_there(part: int) -> str:
    return f"{part_of(part)} is there, and parts have different nodes"


def gang_is_in_one_cluster() -> str:
    return "it is in another cluster, and the parts of a gang are in one"


def part_has_ended() -> str:
    return "another part of it has ended"


def part_is(part: int, node: str, word: str) -> str:
    """`word`: its state."""
    return f"part {part} on node {node} is {word}"
