"""Above the clusters: where new sessions go, by what summaries say and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, Conflict
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.placement import routing
from singularity_scheduler.core.placement.routing import Places, Planet, Region, Summary
from singularity_scheduler.text.errors import in_words
from support.allocations import BASIC, PREMIUM, STANDARD, Claim, World

PARENTS = {"europe": "", "west": "europe", "north": "europe", "w1": "west", "w2": "west"} | {
    "n1": "north"
}


def summary(free: int, capacity: int = 100, **more: Any) -> Summary:
    usual = {"largest": 8, "room": min(8, free), "within": (free, free, free)}
    return Summary(capacity=capacity, free=free, **{**usual, **more})


def planet(**clusters: Summary) -> Planet:
    regions = {"west": Region("west"), "north": Region("north")}
    for name, one in clusters.items():
        regions[PARENTS[name]].learn(name, one, 0.0)
    return Planet(Places(PARENTS), regions.values())


def where(made: Planet, devices: int = 1, *locations: str, now: float = 0.0, **more: Any) -> str:
    return made.choose(Claim("s", devices, **more), locations, now)[1]


# -- summaries ----------------------------------------------------------------------------------


def test_what_a_cluster_tells() -> None:
    world = World(4, 2)
    world.submit("basic", 1, tier=BASIC)
    world.submit("standard", 2, tier=STANDARD)
    world.submit("idle", 1, tier=PREMIUM)
    world.tell(ev.Idle("idle"))
    world.submit("waits", 9, tier=BASIC)
    told = routing.summarise(world.state)
    assert (told.capacity, told.largest, told.free) == (6, 4, 2)
    assert told.room == max(n.free.bit_count() for n in world.state.pools[""].nodes)
    # Free and idle ones, then those of lower tiers; nobody has attained anything yet.
    assert told.within == (3, 4, 6)
    assert told.waiting == (9, 0, 0)
    assert routing.summarise(world.state, "other") == Summary()
    assert routing.summarise(World().state) == Summary()


def test_a_region_is_the_sum_of_its_clusters() -> None:
    one = summary(4, 10, largest=4, waiting=(1, 2, 3))
    two = summary(-3, 30, largest=8, room=0, within=(1, 2, 3))
    told = routing.joined([one, two])
    assert (told.capacity, told.largest, told.free, told.room) == (40, 8, 4, 4)
    assert (told.within, told.waiting) == ((5, 6, 7), (1, 2, 3))


def test_what_was_promised_is_taken_off() -> None:
    told = summary(3)
    told.promised(2, STANDARD)
    assert (told.free, told.within, told.waiting) == (1, (1, 1, 1), (0, 0, 0))
    told.promised(2, STANDARD)
    assert (told.free, told.waiting) == (-1, (0, 2, 0))


# -- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parents", "sentence"),
    [
        ({"a": "a"}, "circle: a in a"),
        ({"a": "b", "b": "c", "c": "a"}, "circle: a in b in c in a"),
        ({"a": "b"}, "a lies in b, which there is not"),
    ],
)
def test_places_that_cannot_be(parents: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence), in_words():
        Places(parents)


@pytest.mark.parametrize(
    ("locations", "allowed"),
    [
        ((), {"w1", "w2", "n1"}),
        (("w1",), {"w1"}),
        (("west",), {"w1", "w2"}),
        (("europe",), {"w1", "w2", "n1"}),
        (("w2", "north"), {"w2", "n1"}),
    ],
)
def test_where_a_session_may_be(locations: tuple[str, ...], allowed: set[str]) -> None:
    places = Places(PARENTS)
    assert {n for n in ("w1", "w2", "n1") if places.allows(locations, n)} == allowed
    regions = {PARENTS[n] for n in allowed}
    assert {n for n in ("west", "north") if places.leads(locations, n)} == regions


def test_an_unknown_location_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadRequest, match="no location 'wset': did you mean 'west'"), in_words():
        where(planet(w1=summary(5)), 1, "wset")


# -- choices ------------------------------------------------------------------------------------


def test_the_fullest_cluster_with_room_is_chosen() -> None:
    made = planet(w1=summary(50), w2=summary(5), n1=summary(0))
    assert where(made, 4) == "w2"
    assert where(made, 4) == "w1"  # what was sent there is counted


def test_one_node_must_have_room_for_what_one_node_can_have() -> None:
    made = planet(w1=summary(20, room=3), w2=summary(50))
    assert where(made, 4) == "w2"
    assert where(made, 20) == "w1"  # a gang has devices of several


def test_where_lower_tiers_give_way_comes_next() -> None:
    made = planet(w1=summary(0, within=(0, 0, 60)), n1=summary(0, within=(0, 0, 10)))
    assert where(made, 4, tier=PREMIUM) == "w1"
    made = planet(w1=summary(0, within=(0, 0, 60)), n1=summary(4))
    assert where(made, 4, tier=PREMIUM) == "n1"


def test_where_least_is_waited_for_comes_last() -> None:
    made = planet(
        w1=summary(0, waiting=(0, 40, 0)), w2=summary(0, waiting=(90, 10, 0)), n1=summary(0, 10)
    )
    assert where(made, 4, "west") == "w2"  # lower tiers wait behind it
    assert where(made, 4, "west", tier=BASIC) == "w1"


def test_who_waits_with_the_same_right_goes_before_free_devices() -> None:
    made = planet(w1=summary(4, waiting=(0, 50, 0)), n1=summary(60))
    assert where(made, 2) == "n1"


def test_allowed_locations_bind() -> None:
    made = planet(w1=summary(0), w2=summary(50), n1=summary(50))
    assert where(made, 1, "w1") == "w1"
    assert where(made, 1, "north") == "n1"


def test_a_cluster_must_be_large_enough_not_only_its_region() -> None:
    made = planet(w1=summary(8, 8), w2=summary(8, 8), n1=summary(0, 12))
    assert where(made, 12) == "n1"
    with pytest.raises(Conflict, match="no cluster has 13 devices for session s"), in_words():
        where(made, 13)
    with pytest.raises(Conflict, match="no cluster in west has 12 devices"), in_words():
        where(made, 12, "west")


def test_elastic_sessions_are_sent_by_their_least() -> None:
    made = planet(w1=summary(2, 10), n1=summary(0, 10))
    assert where(made, 50, minimum=2) == "w1"


def test_only_summaries_are_looked_at_and_old_ones_are_asked_again() -> None:
    made = planet(w1=summary(50), n1=summary(10))
    assert where(made, 8) == "n1"
    west, north = made.regions["west"], made.regions["north"]
    north.learn("n1", summary(9), 1.0)  # the sum that the global level has is not old yet
    west.learn("w1", summary(8), 1.0)
    assert made.regions["north"].stale(11.0) == []
    assert made.regions["north"].stale(11.1) == ["n1"]
    assert where(made, 8, now=5.0) == "w1"
    assert where(made, 8, now=20.0) == "n1"


def test_a_burst_is_spread() -> None:
    made = planet(w1=summary(8), w2=summary(8), n1=summary(8))
    assert sorted(where(made, 8) for _ in range(3)) == ["n1", "w1", "w2"]


# -- those that wait ------------------------------------------------------------------------------


def elsewhere(made: Planet, devices: int, own: str, *locations: str) -> str | None:
    found = made.free(Claim("s", devices), locations, own, 0.0)
    return found and found[1]


def test_who_waits_leaves_for_free_devices_in_its_own_region_first() -> None:
    waits = (0, 4, 0)
    made = planet(w1=summary(0, waiting=waits), w2=summary(4), n1=summary(8))
    assert elsewhere(made, 4, "west") == "w2"
    assert elsewhere(made, 4, "west") == "n1"  # the four of w2 are promised
    assert elsewhere(made, 8, "west") is None


def test_who_waits_in_one_cluster_of_a_region_does_not_close_the_others() -> None:
    made = planet(w1=summary(0, waiting=(0, 0, 8)), w2=summary(8), n1=summary(0, waiting=(0, 2, 0)))
    assert elsewhere(made, 2, "north") == "w2"
    assert elsewhere(made, 2, "north", "w1") is None
