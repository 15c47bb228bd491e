"""The check of everything notices what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation import invariants
from singularity_scheduler.core.allocation.invariants import InvariantBroken
from singularity_scheduler.core.allocation.pool import Node
from support.allocations import BASIC, PREMIUM, Claim, World


def world() -> World:
    """`a` holds, `low` leaves for `high`, `waits` waits, `away` is away; n1 is closed."""
    made = World(4, 2)
    made.tell(ev.Quota("team", 2))
    made.tell(ev.Cordon("n1"))
    made.submit("a", 2, virtual_cluster="team", tier=PREMIUM)
    made.submit("away", 1)
    made.tell(ev.Release("away"))
    made.submit("low", 1, tier=BASIC)
    made.submit("high", 2, tier=PREMIUM)
    made.submit("waits", 3)
    return made


def claim(made: World, id: str) -> Claim:
    return made.state.claims[id]


def node(made: World, number: int = 0) -> Node:
    return made.state.pools[""].nodes[number]


def overlap(made: World) -> None:
    index, mask = next(iter(claim(made, "a").given.items()))
    low = claim(made, "low")
    low.given[index] |= mask
    node(made).holders[low] |= mask


def uncounted(made: World) -> None:
    claim(made, "a").entries = ()


def unallowed(made: World) -> None:
    claim(made, "a").devices, claim(made, "a").counts = 3, (1,)


def unfree(made: World) -> None:
    node(made, 1).free = 0


BREAKS: dict[str, tuple[Callable[[World], object], str]] = {
    "a device twice": (overlap, "held twice"),
    "a device free and held": (lambda w: setattr(node(w), "free", 0b1111), "free and held"),
    "a device nowhere": (unfree, "nowhere"),
    "a holder that is gone": (lambda w: w.state.claims.pop("a"), "gone"),
    "what it has is not what the node says": (lambda w: claim(w, "a").given.clear(), "disagree"),
    "a wrong count": (lambda w: setattr(claim(w, "a"), "count", 1), "counted as"),
    "an uncounted claim": (uncounted, "counted as"),
    "fewer than its least": (lambda w: setattr(claim(w, "a"), "minimum", 3), "of 3 to 2"),
    "a number that it does not allow": (unallowed, "has 2 devices of 2 to 3"),
    "a wrong index": (lambda w: w.state.pools[""].total.__setitem__(1, 9), "is not"),
    "a node in the wrong bucket": (
        lambda w: w.state.pools[""].buckets[0][3].__setitem__(0, None),
        "slot 0",
    ),
    "somebody waits unseen": (lambda w: w.state.queue.waiting.clear(), "queue"),
    "a queue that miscounts": (lambda w: w.state.queue.devices.__setitem__(1, 0), "waited for"),
    "wants that are miscounted": (lambda w: w.state.account.wanted.__setitem__(0, 7), "wanted"),
    "a gatherer that nobody leaves for": (
        lambda w: setattr(claim(w, "low"), "leaves", None),
        "does not leave for it",
    ),
    "more gathered than planned": (lambda w: claim(w, "high").plan.update({0: 0}), "planned"),
    "nobody to wait for": (lambda w: claim(w, "high").lacks.clear(), "waits for nobody"),
    "a quota that miscounts": (lambda w: setattr(w.state.quotas["team"], "own", 0), "of its own"),
    "a quota that is broken": (lambda w: setattr(w.state.quotas["team"], "devices", 1), "right"),
    "an unknown borrower": (
        lambda w: w.state.quotas["team"].borrowers.update({claim(w, "a"): None}),
        "borrowers",
    ),
    "held devices that are miscounted": (lambda w: setattr(w.state, "held", 0), "are held"),
    "a search that is held to fail": (
        lambda w: w.state.pools[""].reopen(node(w, 1)) or w.state.pools[""].note_failed(1, 0),
        "it is held that no node has",
    ),
    "free devices that are withheld": (
        lambda w: (
            w.state.pools[""].reopen(node(w, 1)),
            setattr(claim(w, "waits"), "minimum", 2),
        ),
        "waits for 2 devices, which are free",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_it_is_noticed(name: str) -> None:
    made = world()
    invariants.check(made.state)
    wrong, said = BREAKS[name]
    wrong(made)
    with pytest.raises(InvariantBroken, match=said):
        invariants.check(made.state)
