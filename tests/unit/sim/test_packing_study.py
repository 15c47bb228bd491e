"""The placement study on small synthetic clusters: same rules for all, same seed same outcome."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.core.placement.fragmentation import WHOLE, Demand, Fragmentation, Shape
from singularity_scheduler.sim import packing
from singularity_scheduler.sim.packing import (
    BEST_FIT,
    FGD,
    LEARNT,
    MOVING,
    OURS,
    POLICIES,
    Cluster,
    arrivals,
    measure,
    ratio,
    study,
)
from singularity_scheduler.sim.traces.logs.openb import OpenbNode
from singularity_scheduler.sim.traces.records import BadTrace

MODELS = frozenset({"T"})


def cluster() -> Cluster:
    kinds = [("T", 2, 60_000), ("G", 8, 96_000), ("P", 2, 16_000)]
    return Cluster.of(
        OpenbNode(f"n{i:02}", cpu, 400_000, gpus, model)
        for i, (model, gpus, cpu) in enumerate(kinds * 8)
    )


def demands() -> list[Demand]:
    rng = Random(5)
    kinds = [
        (Demand(4_000, 8_000, 1, 810), 3),
        (Demand(12_000, 40_000, 1, 470), 4),
        (Demand(2_000, 8_000, 1, 160), 2),
        (Demand(8_000, 16_000, 1, WHOLE), 6),
        (Demand(8_000, 16_000, 1, WHOLE, MODELS), 2),
        (Demand(48_000, 99_000, 8, WHOLE), 1),
        (Demand(6_000, 9_000), 2),
    ]
    return rng.choices([d for d, _ in kinds], [n for _, n in kinds], k=150)


def silent(_line: str) -> None:
    pass


def test_demands_arrive_until_the_cluster_is_asked_for_enough() -> None:
    given = demands()[:60]
    order = arrivals(given, 96_000, seed=1, upto=130)
    assert Counter(order[: len(given)]) == Counter(given)
    asked = [sum(d.capacity for d in order[:n]) for n in (len(order) - 1, len(order))]
    assert asked[0] < 1.3 * 96_000 <= asked[1]
    assert order == arrivals(given, 96_000, seed=1, upto=130)
    assert order != arrivals(given, 96_000, seed=2, upto=130)


def test_every_policy_keeps_to_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step: nobody has more than there is, and nobody is on a model it excludes."""
    taken: list[int] = []

    class Watched(packing.Packer):
        def take(self, place: packing.Place, demand: Demand) -> None:
            shape = self.shape(place.node)
            assert not demand.devices or not demand.models or shape.model in demand.models
            assert len(place.devices) == demand.devices
            super().take(place, demand)
            shape = self.shape(place.node)
            assert min(shape.cpu, shape.memory, *shape.free) >= 0
            taken.append(demand.capacity)

    monkeypatch.setattr(packing, "Packer", Watched)
    results = study(cluster(), demands(), [0], silent)
    assert list(results) == list(POLICIES)
    assert len(taken) > 500
    for result in results.values():
        assert 0.0 <= result.fragmented <= 1.0 - result.allocated + 1e-9
        assert result.unallocated_devices == pytest.approx((1 - result.allocated) * 96)
        assert [p.arrived for p in result.curve] == list(packing.MARKS)
        allocated = [p.allocated for p in result.curve]
        assert allocated == sorted(allocated)
        assert all(0.0 <= p.rate <= 1.0 + 1e-9 for p in result.curve)
        assert (result.moves > 0) <= (result.policy == MOVING)


def test_the_same_seed_gives_the_same_outcome() -> None:
    def outcome(seeds: list[int]) -> list[object]:
        found = study(cluster(), demands(), seeds, silent, ["random", OURS])
        return [(r.fragmented, r.failed, r.curve) for r in found.values()]

    assert outcome([7]) == outcome([7])
    assert outcome([7]) != outcome([8])


def test_ours_leaves_less_in_pieces_than_the_others() -> None:
    policies = ["random", BEST_FIT, FGD, OURS, LEARNT, MOVING]
    results = study(cluster(), demands(), range(12), silent, policies)
    assert ratio(results, "random") < 0.9
    assert ratio(results, BEST_FIT) < 1.0
    assert ratio(results, FGD) < 1.0
    assert ratio(results, BEST_FIT, LEARNT) < 1.0
    assert results[MOVING].fragmented <= results[OURS].fragmented


def test_best_fit_and_gradient_descent_follow_the_paper() -> None:
    tight, loose = Shape("A", 8_000, 9, (500, WHOLE)), Shape("A", 64_000, 9, (500, WHOLE))
    part = Demand(1_000, 1, 1, 400)
    assert packing.best_fit(tight, part, 500) < packing.best_fit(loose, part, 500)
    left = 7_000 / 128_000 / 2 + 1_100 / 8_000 / 2
    assert packing.best_fit(tight, part, 500)[0] == pytest.approx(left)
    fill = packing.gradient_descent(Fragmentation({part: 1, Demand(1_000, 1, 1, WHOLE): 1}))
    assert fill(tight, part, 500) < fill(tight, part, WHOLE)
    # Of 1500 free thousandths 250 were in pieces, of the 1100 left it is 100.
    assert fill(tight, part, 500)[0] == -int(100 / (1 + math.exp(-0.150)))


def test_a_study_from_files(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,T4\nn1,32000,131072,0,\n"
    )
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
        "p0,4000,1024,1,600,\np1,4000,1024,1,1000,T4|P100\np2,4000,1024,0,0,\n"
    )
    lines: list[str] = []
    results = measure(nodes, pods, [1], lines.append, [FGD, OURS])
    assert [line.split(":")[0] for line in lines] == [FGD, OURS]
    assert results[OURS].allocated > 0.5
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,4000,1024,1,1200\n")
    with pytest.raises(BadTrace, match="row 2"):
        measure(nodes, pods, [1], lines.append)
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,4000,1024,0,0\n")
    with pytest.raises(BadRequest, match="no pod of the list asks for a device"):
        measure(nodes, pods, [1], lines.append)
    with pytest.raises(BadRequest, match="policies from random"):
        study(cluster(), demands(), [1], silent, ["gravity"])
    with pytest.raises(BadRequest, match="no node of the list has a device"):
        Cluster.of([])
