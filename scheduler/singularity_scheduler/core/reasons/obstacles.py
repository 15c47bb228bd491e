"""Makes the reasons why something cannot be done now.

Each function returns a code with its arguments; `text.reasons` makes English of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from singularity_scheduler.core.values.administration import NodeMark, VirtualCluster

from .reason import Reason, because

NAMED = 4
"""How many nodes' reasons one reason has."""


def no_answer(node: str) -> Reason:
    return because("no_answer", node=node)


def not_allowed_there(node: str, cluster: str, region: str, locations: tuple[str, ...]) -> Reason:
    other = region if region != cluster else None
    return because(
        "not_allowed_there", node=node, cluster=cluster, region=other, locations=locations
    )


def not_open(mark: NodeMark) -> Reason:
    by = mark.by or None
    return because("not_open", node=mark.node, state=mark.duty.value, by=by, why=mark.reason)


def no_images(node: str, trouble: str) -> Reason:
    return because("no_images", node=node, trouble=trouble)


def other_store(node: str, here: str) -> Reason:
    return because("other_store", node=node, here=here)


def other_machine(node: str, difference: str) -> Reason:
    return because("other_machine", node=node, difference=difference)


def too_few_devices(node: str, usable: int, needs: int) -> Reason:
    return because("too_few_devices", node=node, usable=usable, needs=needs)


def full_of_runs(node: str) -> Reason:
    return because("full_of_runs", node=node)


def in_use(node: str) -> Reason:
    return because("in_use", node=node)


def quota_used(cluster: VirtualCluster, used: float) -> Reason:
    return because("quota_used", cluster=cluster.name, used=used, quota=cluster.quota_devices)


def quota_full_of_runs(cluster: VirtualCluster, used: float) -> Reason:
    quota = cluster.quota_devices
    return because("quota_full_of_runs", cluster=cluster.name, used=used, quota=quota)


def no_node(locations: tuple[str, ...]) -> Reason:
    """`locations`: where the session may be only; (): anywhere."""
    if locations:
        return because("no_node_allowed", locations=locations)
    return because("no_node")


def several(whys: Iterable[Reason]) -> Reason | None:
    """Return the reasons of several nodes as one, which does not grow with their number; None:
    there are none."""
    each = tuple(dict.fromkeys(whys))
    if len(each) < 2:
        return each[0] if each else None
    more = len(each) - NAMED
    if more > 1:  # of one more there is as much to say as that it is there
        return because("several", each=each[:NAMED], more=more)
    return because("several", each=each, more=0)


def parts_without_nodes() -> Reason:
    return because("parts_without_nodes")
