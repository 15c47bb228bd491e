"""The fragmentation measure against its definition, written out device by device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from singularity_proxy.errors import BadRequest
from singularity_scheduler.core.placement.fragmentation import WHOLE, Demand, Fragmentation, Shape
from singularity_scheduler.core.placement.outlook import Learner, Outlook, sought
from singularity_scheduler.text.errors import in_words

MODELS = ("A", "B")
parts = st.builds(
    Demand,
    cpu=st.integers(0, 8),
    memory=st.integers(0, 8),
    devices=st.just(1),
    milli=st.sampled_from([100, 250, 460, 810]),
    models=st.sampled_from([frozenset(), frozenset("A"), frozenset(MODELS)]),
)
wholes = st.builds(
    Demand,
    cpu=st.integers(0, 8),
    memory=st.integers(0, 8),
    devices=st.integers(1, 4),
    milli=st.just(WHOLE),
    models=st.sampled_from([frozenset(), frozenset("B")]),
)
plain = st.builds(Demand, cpu=st.integers(0, 8), memory=st.integers(0, 8))
demands = st.one_of(parts, wholes, plain)
workloads = st.dictionaries(demands, st.integers(1, 9), min_size=1, max_size=8)
shapes = st.builds(
    lambda model, cpu, memory, free: Shape(model, cpu, memory, tuple(sorted(free))),
    st.sampled_from(MODELS),
    st.integers(0, 12),
    st.integers(0, 12),
    st.lists(st.sampled_from([0, 100, 190, 460, 540, 810, WHOLE]), min_size=1, max_size=5),
)


def by_definition(shape: Shape, workload: dict[Demand, int]) -> float:
    """Each kind of task by itself: all that is free if it cannot run, else the too small rests."""
    total = 0.0
    for demand, weight in workload.items():
        enough = [left for left in shape.free if left >= demand.milli]
        runs = (
            demand.devices > 0
            and shape.cpu >= demand.cpu
            and shape.memory >= demand.memory
            and (not demand.models or shape.model in demand.models)
            and len(enough) >= demand.devices
        )
        rests = [left for left in shape.free if not runs or left < demand.milli]
        total += weight * sum(rests)
    return total / sum(workload.values())


@given(shapes, workloads)
def test_the_measure_is_its_definition(shape: Shape, workload: dict[Demand, int]) -> None:
    found = Fragmentation(workload).fragmented(shape)
    assert found == pytest.approx(by_definition(shape, workload))
    assert -1e-6 <= found <= sum(shape.free) + 1e-6


@given(shapes, workloads, demands)
def test_the_gradient_is_the_difference(
    shape: Shape, workload: dict[Demand, int], demand: Demand
) -> None:
    measure = Fragmentation(workload)
    if not shape.fits(demand):
        return
    for option in shape.options(demand):
        after = shape.after(demand, option)
        assert after.free == tuple(sorted(after.free))
        assert min((after.cpu, after.memory, *after.free)) >= 0
        assert sum(after.free) == sum(shape.free) - demand.capacity
        difference = by_definition(after, workload) - by_definition(shape, workload)
        assert measure.gradient(shape, demand, option) == pytest.approx(difference)


@given(shapes, workloads)
def test_filling_a_node_with_one_kind_is_what_really_fits(
    shape: Shape, workload: dict[Demand, int]
) -> None:
    total = 0.0
    for demand, weight in workload.items():
        now, used = shape, 0
        while demand.devices and now.fits(demand):
            now = now.after(demand, next(iter(now.options(demand))))
            used += demand.capacity
        total += weight * used
    found = Outlook(workload, {"A": 1000, "B": 1000}).filled(shape)
    assert found == pytest.approx(total / sum(workload.values()))


def test_a_model_that_some_tasks_need_is_sought() -> None:
    anywhere, bound = Demand(1, 1, 1, WHOLE), Demand(1, 1, 1, WHOLE, frozenset("A"))
    found = sought({anywhere: 1, bound: 1}, {"A": 1000, "B": 3000})
    assert found == pytest.approx({"A": 2.5, "B": 0.5})
    assert sought({Demand(1, 1): 1}, {"A": 1000}) == {"A": 1.0}
    judge = Outlook({anywhere: 1, bound: 1}, {"A": 1000, "B": 3000})
    a, b = (Shape(model, 8, 8, (WHOLE, WHOLE)) for model in "AB")
    assert judge(b, anywhere, WHOLE) < judge(a, anywhere, WHOLE)


def test_a_learner_forgets_what_nobody_asks_for_any_more() -> None:
    learner, old, new = Learner(half_life=100, first=4), Demand(1, 1, 1, 500), Demand(2, 2, 1, 250)
    lessons = [at for at in range(1, 65) if learner.see(old)]
    assert lessons == [4, 8, 16, 32, 64]
    for _ in range(100):
        learner.see(new)
    weights = learner.weights
    share = weights[old] / sum(weights.values())
    assert 0.2 < share < 64 / 164
    for _ in range(5000):
        learner.see(new)
    assert learner.weights.get(old, 0.0) < 1e-9 * learner.weights[new]


@pytest.mark.parametrize(
    ("amounts", "says"),
    [
        ((-1, 1), "negative"),
        ((1, 1, 1, 0), "both above 0"),
        ((1, 1, 2, 500), "a part of one device"),
        ((1, 1, 1, 1001), "a part of one device"),
    ],
)
def test_a_demand_that_makes_no_sense_is_refused(amounts: tuple[int, ...], says: str) -> None:
    with pytest.raises(BadRequest, match=says), in_words():
        Demand(*amounts)


def test_a_workload_of_nothing_is_refused() -> None:
    with pytest.raises(BadRequest, match="one above 0"), in_words():
        Fragmentation({})
    with pytest.raises(BadRequest, match="one above 0"), in_words():
        Fragmentation({Demand(1, 1): 0})
    with pytest.raises(BadRequest, match="half-life"), in_words():
        Learner(0)
