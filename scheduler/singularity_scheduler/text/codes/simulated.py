"""Why the allocation of a cluster, or the study of placement, refuses what it is given. One
function for each code; its arguments are those of the code."""

from __future__ import annotations

# -- nodes ----------------------------------------------------------------------------------


def node_without_devices(node: str, number: int) -> str:
    return f"node {node} has {number} devices: it needs at least 1"


def node_exists(node: str) -> str:
    return f"node {node} is there already"


def islands_overlap(node: str, number: int) -> str:
    return (
        f"the islands of node {node} must be parts of its {number} devices that have none in common"
    )


def no_node_of_that_name(node: str) -> str:
    return f"there is no node {node}"


# -- sessions -------------------------------------------------------------------------------


def is_in_another_cluster(session: str | int) -> str:
    return f"session {session} is in another cluster: end it there first"


def least_above_most(session: str | int, least: int, most: int) -> str:
    return (
        f"session {session} asks for {least} to {most} devices: the least must be at least 1 and "
        "not more than the most"
    )


def counts_do_not_rise(session: str | int, counts: tuple[int, ...], least: int, most: int) -> str:
    told = ", ".join(map(str, counts))
    return (
        f"session {session} may have {told} devices: these must rise, with the least ({least}) "
        f"among them and none above the most ({most})"
    )


def rank_out_of_range(session: str | int, tier_rank: int, priority_rank: int) -> str:
    return (
        f"session {session} has tier {tier_rank} and priority {priority_rank}: both go from 0 to 2"
    )


def share_out_of_range(session: str | int, share_milli: int, number: int) -> str:
    return (
        f"session {session} asks for {share_milli} thousandths of {number} devices: 1 to 1000 "
        "thousandths of one can be had"
    )


def cost_out_of_range(session: str | int, seconds: float) -> str:
    return f"session {session} has a time of {seconds} s among its costs: 0 is the least"


def does_not_wait(session: str | int) -> str:
    return f"session {session} does not wait for devices: park it before it goes to another cluster"


def negative_quota(number: int) -> str:
    return f"a quota of {number} devices cannot be: 0 is the least"


# -- placement ------------------------------------------------------------------------------


def negative_demand(demand: str) -> str:
    return f"{demand} has a negative amount: ask for 0 or more of everything"


def devices_without_parts(demand: str) -> str:
    return f"{demand}: devices and their thousandths are both 0 or both above 0"


def parts_of_several(demand: str, whole: int) -> str:
    return f"{demand}: ask for whole devices ({whole}) or for a part of one device"


def workload_without_weight() -> str:
    return "a workload needs demands with weights of 0 or more, one above 0"


def negative_capacity() -> str:
    return "a device model has a negative capacity: give 0 or more"


def learner_without_lessons() -> str:
    return "a learner needs a half-life and a first lesson of 1 demand or more"


def node_is_packed_already(node: str) -> str:
    return f"node {node} is there already; nothing was changed"


def no_room_for_demand(node: str, demand: str) -> str:
    return f"node {node} has no room for {demand}; nothing was taken"


def demand_not_there(node: str, demand: str) -> str:
    return f"{demand} is not on node {node}; nothing was freed"


def no_node_in_cluster(node: str) -> str:
    return f"there is no node '{node}' in this cluster"
