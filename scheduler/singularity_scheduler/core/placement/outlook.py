"""Our judge of placements: what a placement takes from the tasks that come later. Pure.

Three things are added up, all in thousandths of a device:

* what the placement takes from one more task: the gradient of the fragmentation;
* what it takes from many more: how much of the node could be filled with tasks of one kind, as an
  expectation over kinds. The measure itself counts eight free devices as usable where CPU is left
  for one task only;
* how sought-after the device model is: the load of tasks that allow it over its capacity, spread
  evenly over the models that a task allows. So a task that runs anywhere leaves alone the devices
  that others have no choice but to use.

Differences below `STEP` are noise of the demands seen so far; then a device with the least left is
taken, and of equal nodes the first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from singularity_proxy.errors import BadRequest

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import refuse

from .fragmentation import Demand, Fragmentation, Shape

FILL = 0.1
"""Weight of the second part; the first one has the rest."""
SOUGHT = 0.3
"""Weight of the third part."""
STEP = 20.0
_KEPT = 200_000
"""Shapes whose worth is remembered before all are forgotten."""

_Kinds = list[tuple[int, int, list[tuple[int, int, float]]]]


class Outlook:
    """A judge for a `Packer`, for one distribution of demands on one cluster."""

    def __init__(self, weights: Mapping[Demand, float], capacity: Mapping[str, int]) -> None:
        """`weights`: how often each demand comes; `capacity`: device model -> thousandths of a
        device that the cluster has of it."""
        self.measure = Fragmentation(weights)
        self._sought = sought(self.measure.shares, capacity)
        self._kinds: dict[str, _Kinds] = {}
        self._copies: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._worths: dict[Shape, float] = {}

    def __call__(self, shape: Shape, demand: Demand, option: int) -> tuple[float, ...]:
        lost = self.worth(shape) - self.worth(shape.after(demand, option)) - demand.capacity
        lost += SOUGHT * demand.capacity * (self._sought.get(shape.model, 1.0) - 1.0)
        return (math.floor(lost / STEP + 0.5), option)

    def worth(self, shape: Shape) -> float:
        """What is free here, counted by how much of it later tasks can use."""
        found = self._worths.get(shape)
        if found is None:
            if len(self._worths) >= _KEPT:
                self._worths.clear()
            found = (1.0 - FILL) * self.measure.usable(shape) + FILL * self.filled(shape)
            self._worths[shape] = found
        return found

    def filled(self, shape: Shape) -> float:
        """Thousandths in use when the node is filled with tasks of one kind, as an expectation."""
        kinds = self._kinds.get(shape.model)
        if kinds is None:
            kinds = self._kinds[shape.model] = self._group(shape.model)
        cpu, memory, free = shape.cpu, shape.memory, shape.free
        total = 0.0
        for milli, devices, tasks in kinds:
            if not free or free[-1] < milli:
                continue
            copies = sum(left // milli for left in free) // devices
            if copies:
                for task_cpu, task_memory, weight in tasks:
                    n = copies
                    if cpu < n * task_cpu:
                        n = cpu // task_cpu
                    if memory < n * task_memory:
                        n = memory // task_memory
                    total += n * weight
        return total

    def _group(self, model: str) -> _Kinds:
        """The tasks that may run on this model: thousandths of a device, devices, and for each
        amount of CPU and memory the expected thousandths of one such task."""
        found: dict[tuple[int, int], Counter[tuple[int, int]]] = {}
        for demand, share in self.measure.shares.items():
            if demand.devices and (not demand.models or model in demand.models):
                tasks = found.setdefault((demand.milli, demand.devices), Counter())
                tasks[demand.cpu, demand.memory] += share * demand.capacity  # type: ignore[assignment]
        return [
            (milli, devices, [(cpu, memory, w) for (cpu, memory), w in tasks.items()])
            for (milli, devices), tasks in sorted(found.items())
        ]


def sought(weights: Mapping[Demand, float], capacity: Mapping[str, int]) -> dict[str, float]:
    """Device model -> load of the tasks that allow it, over its capacity; 1.0 on the whole cluster.

    A task's load is spread over the models that it allows by their capacity. With no load at all,
    or no task that cares about models, every model has 1.0.
    """
    if min(capacity.values(), default=0) < 0:
        raise refuse(BadRequest, because("negative_capacity"))
    loads = dict.fromkeys(capacity, 0.0)
    placed = 0.0
    for demand, weight in weights.items():
        allowed = demand.models & capacity.keys() if demand.models else capacity.keys()
        room = sum(capacity[model] for model in allowed)
        if room and demand.capacity:
            placed += weight * demand.capacity
            for model in allowed:
                loads[model] += weight * demand.capacity / room
    mean = placed / (sum(capacity.values()) or 1)
    return {model: load / mean if mean else 1.0 for model, load in loads.items()}


class Learner:
    """The distribution of demands, learnt from what is submitted. Old demands count less: after
    `half_life` further ones, half."""

    def __init__(self, half_life: int = 4096, first: int = 64) -> None:
        """`first`: after so many demands the first distribution is due; then each time that their
        number has doubled, and from `half_life` on after every half of it."""
        if half_life < 1 or first < 1:
            raise refuse(BadRequest, because("learner_without_lessons"))
        self._growth = 2.0 ** (1.0 / half_life)
        self._weight = 1.0
        self._half_life = half_life
        self._weights: dict[Demand, float] = {}
        self._seen = 0
        self._due = first

    def see(self, demand: Demand) -> bool:
        """Count a demand; True: it is time to judge by `weights` as they are now."""
        self._weights[demand] = self._weights.get(demand, 0.0) + self._weight
        self._weight *= self._growth
        self._seen += 1
        if self._seen < self._due:
            return False
        self._due += min(self._seen, max(self._half_life // 2, 1))
        if self._weight > 1e12:
            self._shrink()
        return True

    @property
    def weights(self) -> dict[Demand, float]:
        return dict(self._weights)

    def _shrink(self) -> None:
        """Scale down, and forget what has not been asked for in a long time."""
        scaled = {d: w / self._weight for d, w in self._weights.items()}
        self._weights = {d: w for d, w in scaled.items() if w > 1e-6}
        self._weight = 1.0
