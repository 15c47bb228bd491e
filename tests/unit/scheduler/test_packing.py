"""The index of nodes by shape: the best place, found without looking at every node."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from singularity_proxy.errors import Conflict, NotFound
from singularity_scheduler.core.placement.fragmentation import WHOLE, Demand, Shape
from singularity_scheduler.core.placement.outlook import Outlook
from singularity_scheduler.core.placement.packing import Packer, Place, Score
from singularity_scheduler.text.errors import in_words

DEMANDS = (
    Demand(2, 2, 1, 300),
    Demand(1, 4, 1, 700),
    Demand(3, 1, 1, WHOLE),
    Demand(4, 4, 2, WHOLE, frozenset("B")),
    Demand(5, 1),
)
NODES = [(f"n{i}", "AB"[i % 2], 8 + i % 3, 12, 1 + i % 4) for i in range(12)]


class PackerMachine(RuleBasedStateMachine):
    """Tasks come and go; after each step the index is compared with the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = Outlook(dict.fromkeys(DEMANDS, 1), {"A": 6000, "B": 9000})
        self.packer = Packer(self.judge)
        for node in NODES:
            self.packer.add(*node)
        self.running: list[tuple[Place, Demand]] = []

    def best(self, demand: Demand) -> tuple[Score, str] | None:
        """Every node and every option looked at."""
        found: list[tuple[Score, int, str]] = []
        for number, (name, *_) in enumerate(NODES):
            shape = self.packer.shape(name)
            if shape.fits(demand):
                score = min(self.judge(shape, demand, o) for o in shape.options(demand))
                found.append((score, number, name))
        return (min(found)[0], min(found)[2]) if found else None

    @rule(demand=st.sampled_from(DEMANDS), times=st.integers(1, 6))
    def submit(self, demand: Demand, times: int) -> None:
        for _ in range(times):
            best = self.best(demand)
            place = self.packer.choose(demand)
            if best is None:
                assert place is None
                return
            assert place is not None
            assert place.node == best[1]
            shape, free = self.packer.shape(place.node), self.packer.free(place.node)
            assert len(set(place.devices)) == demand.devices
            option = free[place.devices[0]] if demand.devices else WHOLE
            assert self.judge(shape, demand, option) == best[0]
            assert self.packer.place_on(place.node, demand) == place
            self.packer.take(place, demand)
            self.running.append((place, demand))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.running) - 1))
        self.packer.give_back(*self.running.pop(at))

    @invariant()
    def nothing_is_given_twice(self) -> None:
        left = {name: [cpu, memory, *[WHOLE] * n] for name, _, cpu, memory, n in NODES}
        for place, demand in self.running:
            left[place.node][0] -= demand.cpu
            left[place.node][1] -= demand.memory
            for at in place.devices:
                left[place.node][2 + at] -= demand.milli
        for name, (cpu, memory, *free) in left.items():
            assert min(cpu, memory, *free) >= 0
            shape = self.packer.shape(name)
            assert (shape.cpu, shape.memory) == (cpu, memory)
            assert list(self.packer.free(name)) == free
        assert sum(n for _, n in self.packer.shapes) == len(NODES)


TestPacker = PackerMachine.TestCase
TestPacker.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def level(_shape: Shape, _demand: Demand, _option: int) -> Score:
    return (0.0,)


def test_of_equal_nodes_the_first_is_taken_or_any() -> None:
    demand = Demand(1, 1, 1, WHOLE)
    first, any_one = Packer(level), Packer(level, Random(3))
    for packer in (first, any_one):
        for number in range(20):
            packer.add(f"n{number}", "A", 9, 9, 1)
    places = {name: packer.choose(demand) for name, packer in (("f", first), ("a", any_one))}
    assert places["f"] == Place("n0", (0,))
    assert len({any_one.choose(demand) for _ in range(60)}) > 10


def test_another_judge_counts_from_the_next_choice_on() -> None:
    packer, demand = Packer(level), Demand(1, 1, 1, WHOLE)
    packer.add("small", "A", 2, 9, 1)
    packer.add("large", "A", 9, 9, 1)
    assert packer.choose(demand) == Place("small", (0,))
    packer.judge_by(lambda shape, _demand, _option: (-shape.cpu,))
    assert packer.choose(demand) == Place("large", (0,))


def test_the_ranking_follows_a_long_history() -> None:
    """Many more changes than nodes: what has gone is dropped and nothing that lives is missed."""
    packer, rare, common = Packer(level), Demand(7, 1, 1, WHOLE), Demand(1, 1, 1, 300)
    for number in range(3):
        packer.add(f"n{number}", "A", 9, 9, 2)
    assert packer.choose(rare) is not None
    for _ in range(2000):
        place = packer.choose(common)
        assert place is not None
        packer.take(place, common)
        packer.give_back(place, common)
    for _ in range(3):
        place = packer.choose(rare)
        assert place is not None
        packer.take(place, rare)
    assert packer.choose(rare) is None


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    packer, half = Packer(level), Demand(1, 1, 1, 600)
    packer.add("n0", "A", 9, 9, 2)
    packer.take(Place("n0", (0,)), half)
    before = packer.shape("n0")
    with pytest.raises(Conflict, match="there already"), in_words():
        packer.add("n0", "A", 1, 1, 1)
    for place in (Place("n0", (0,)), Place("n0", (0, 1)), Place("n0", ())):
        with pytest.raises(Conflict, match="no room"), in_words():
            packer.take(place, half)
    with pytest.raises(Conflict, match="not on node"), in_words():
        packer.give_back(Place("n0", (1,)), half)
    with pytest.raises(NotFound, match="no node 'n9'"), in_words():
        packer.take(Place("n9", (0,)), half)
    assert packer.shape("n0") == before
    assert packer.place_on("n0", Demand(1, 1, 2, WHOLE)) is None
