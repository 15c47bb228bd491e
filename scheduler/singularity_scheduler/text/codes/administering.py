"""Why something that was asked of the cluster cannot be done: nodes, devices, quotas, parameters,
upgrades, and placing new sessions. One function for each code; its arguments are those of the code.
"""

from __future__ import annotations

from collections.abc import Sequence

from singularity_scheduler.text.meanings import DUTIES
from singularity_scheduler.text.phrases import clipped, count, inside, instead_of
from singularity_scheduler.text.said import Said

AGAIN = "try again when"

# -- names ----------------------------------------------------------------------------------


def _no_such(what: str, word: str, near: str | None, there: tuple[str, ...]) -> str:
    return f"there is no {what} '{clipped(word)}': {instead_of(near, there)}"


def no_such_node(word: str, near: str | None, there: tuple[str, ...]) -> str:
    return _no_such("node", word, near, there)


def no_such_cluster(word: str, near: str | None, there: tuple[str, ...]) -> str:
    return _no_such("cluster", word, near, there)


def no_such_virtual_cluster(word: str, near: str | None, there: tuple[str, ...]) -> str:
    return _no_such("virtual cluster", word, near, there)


def no_such_parameter(word: str, near: str | None, there: tuple[str, ...]) -> str:
    return _no_such("parameter", word, near, there)


def no_such_location(word: str, near: str | None, there: tuple[str, ...]) -> str:
    return _no_such("location", word, near, there)


def no_such_place(word: str, there: tuple[str, ...]) -> str:
    names = ", ".join(there)
    return f"there is no location '{word}': name clusters or regions, there are {names}"


def no_such_device(device: str, node: str, there: tuple[str, ...]) -> str:
    """`there`: the devices of all nodes, each as node/device."""
    choice = ", ".join(there) or "none"
    return f"there is no device {device} on a node {node}: pick from {choice}"


def not_a_place_name(word: str) -> str:
    """`word`: as a literal."""
    return (
        f"{word} cannot be the name of a cluster or region: at most 63 letters, digits, dots, "
        "dashes and underscores can, the first a letter or digit"
    )


def places_in_a_circle(places: tuple[str, ...]) -> str:
    return f"the places go in a circle: {' in '.join(places)}"


def place_lies_nowhere(place: str, parent: str) -> str:
    return f"place {place} lies in {parent}, which there is not"


# -- nodes, devices, upgrades ---------------------------------------------------------------


def no_such_duty_step(node: str, state: str, verb: str) -> str:
    return f"node {node} is {state} ({DUTIES[state]}): there is nothing to {verb}"


def homeless(node: str, who: str, more: int, why: Said) -> str:
    """`more`: sessions for which the same is true."""
    others = f" and {more} more" if more else ""
    return (
        f"node {node} was not drained and goes on: no other node can take {who}{others} ({why}); "
        "make room first, or let them wait in the store (store)"
    )


def not_drained(device: str, node: str) -> str:
    return f"{device} of node {node} is not drained, so there is nothing to return"


def upgrade_under_way(state: str, done: int, number: int) -> str:
    nodes = count(number, "node")
    return f"an upgrade is {state} already ({done} of {nodes} done): let it end, or cancel it"


def no_node_to_upgrade() -> str:
    return "there is no node to upgrade"


def at_once_out_of_range(number: int, at_once: int) -> str:
    """`number`: of the nodes of the upgrade."""
    return (
        f"at_once must be a whole number from 1 to {number} (the nodes of the upgrade), not "
        f"{at_once}"
    )


def no_such_upgrade_state(state: str) -> str:
    return f"an upgrade can be running, paused or cancelled, not {state}"


def not_of_the_upgrade(word: str, near: str | None, there: tuple[str, ...]) -> str:
    return f"node {word} is not part of the upgrade: {instead_of(near, there)}"


def not_out_for_the_upgrade(node: str, state: str) -> str:
    return f"node {node} is not out for the upgrade, it is {state}: wait until it is drained"


def no_upgrade_under_way(state: str | None) -> str:
    """`state`: of the last one; None: there is none."""
    how = f"the last one is {state}" if state is not None else "there never was one"
    return f"no upgrade is under way ({how})"


# -- quotas, parameters ---------------------------------------------------------------------


def quota_out_of_range(quota: int, most: int) -> str:
    return f"quota_devices must be a whole number from 0 to {most}, not {quota}"


def virtual_cluster_in_use(cluster: str, number: int, who: str) -> str:
    sessions = count(number, "session")
    return (
        f"virtual cluster '{cluster}' was kept: {sessions} of it would be nobody's, for example "
        f"{who}: end them first"
    )


def more_than_quota(number: int, cluster: str, quota: int) -> str:
    return f"{count(number)} asked, but virtual cluster '{cluster}' has {quota} and may not borrow"


def fractions_rise(fractions: tuple[float, ...]) -> str:
    """`fractions`: of premium, standard and basic."""
    first, second, third = fractions
    return (
        "premium_fraction, standard_fraction and basic_fraction must not rise from tier to tier, "
        f"but are {first:g}, {second:g} and {third:g}"
    )


def parameter_out_of_range(
    parameter: str, kind: str, most: int | None, low: float, high: float, given: str
) -> str:
    """`kind`: "number", "whole" or "numbers", at `most` so many; `given`: as a literal."""
    what = {
        "number": "a number",
        "whole": "a whole number",
        "numbers": f"up to {most} rising numbers",
    }[kind]
    return f"{parameter} must be {what} from {low:g} to {high:g}, not {clipped(given)}"


# -- room for new sessions ------------------------------------------------------------------


def no_agent_is_connected(locations: tuple[str, ...]) -> str:
    return (
        f"no node agent{inside(locations)} is connected, so nothing can be started: try again in a "
        "few seconds"
    )


def no_node_is_open(locations: tuple[str, ...], each: tuple[Said, ...]) -> str:
    whys = "; ".join(why.text for why in each)
    return f"no node{inside(locations)} takes new sessions now ({whys}): {AGAIN} one is open again"


def _where(locations: Sequence[str]) -> str:
    return " or ".join(locations) or "this cluster"


def too_many_devices(number: int, locations: tuple[str, ...], largest: int) -> str:
    """`largest`: what a session can have."""
    has = f"at most {largest} for one session: ask for 1 to {largest}" if largest else "no device"
    return f"{count(number)} asked, but {_where(locations)} has {has}"


def _each(number: int, needs: int) -> str:
    return f"{number} nodes with {count(needs)} each asked"


def too_few_nodes(number: int, needs: int, locations: tuple[str, ...], most: int) -> str:
    return (
        f"{_each(number, needs)}, but {_where(locations)} has {most} such: ask for fewer nodes, or "
        "for fewer devices"
    )


def too_few_open_nodes(number: int, needs: int) -> str:
    return (
        f"{_each(number, needs)}, and too few such nodes take new sessions now: {AGAIN} more are "
        "open again"
    )


def no_cluster_has_them(locations: tuple[str, ...], number: int, session: str | int) -> str:
    where = f" in {', '.join(locations)}" if locations else ""
    return (
        f"no cluster{where} has {number} devices for session {session}: ask for fewer, or allow "
        "other locations"
    )
