"""How much free device capacity a node cannot use, and what a placement adds to it. Pure.

The measure is that of "Beware of Fragmentation" (USENIX ATC '23): the capacity that a task drawn
from the workload could not use, as an expectation. For a node and one kind of task it is

* all of the node's free capacity if the task cannot run there: a device too few, too little CPU or
  memory, a model it does not allow, or a task that takes no device at all;
* else what is free on the devices that have less left than one device of the task takes.

Capacity is in thousandths of a device ("milli"), CPU in thousandths of a core, memory in MiB.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

from singularity_proxy.errors import BadRequest

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import refuse

WHOLE = 1000
"""One device, in thousandths."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one task asks for: `devices` devices with `milli` of each, on one node.

    Fewer than `WHOLE` thousandths are a part of one device, so only one can be asked for then.
    `models` empty: any device model will do.
    """

    cpu: int
    memory: int
    devices: int = 0
    milli: int = 0
    models: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if min(self.cpu, self.memory, self.devices, self.milli) < 0:
            raise refuse(BadRequest, because("negative_demand", demand=str(self)))
        if bool(self.devices) != bool(self.milli):
            raise refuse(BadRequest, because("devices_without_parts", demand=str(self)))
        if self.milli > WHOLE or (self.devices > 1 and self.milli < WHOLE):
            raise refuse(BadRequest, because("parts_of_several", demand=str(self), whole=WHOLE))

    @property
    def capacity(self) -> int:
        """Thousandths of a device in all."""
        return self.devices * self.milli


class Shape(NamedTuple):
    """What is free on a node: all that placement looks at, so nodes of one shape are equal."""

    model: str
    cpu: int
    memory: int
    free: tuple[int, ...]
    """Thousandths left on each device, ascending."""

    def fits(self, demand: Demand) -> bool:
        """Whether the demand can run here now."""
        n = demand.devices
        return (
            self.cpu >= demand.cpu
            and self.memory >= demand.memory
            and (
                not n
                or (
                    len(self.free) >= n
                    and self.free[-n] >= demand.milli
                    and (not demand.models or self.model in demand.models)
                )
            )
        )

    def options(self, demand: Demand) -> Iterable[int]:
        """The different amounts left on a device that the demand, a part of one, can go to.

        Whole devices are all alike and a task without devices has no choice: then there is one
        option, whose value says nothing. Call only where the demand fits.
        """
        if not 0 < demand.milli < WHOLE:
            return (WHOLE,)
        return dict.fromkeys(self.free[bisect_left(self.free, demand.milli) :])

    def after(self, demand: Demand, option: int) -> Shape:
        """The shape with the demand placed on that option."""
        free, n = self.free, demand.devices
        if demand.milli == WHOLE:
            free = (0,) * n + free[:-n]
        elif n:
            at = bisect_left(free, option)
            left = option - demand.milli
            to = bisect_left(free, left)
            free = (*free[:to], left, *free[to:at], *free[at + 1 :])
        return Shape(self.model, self.cpu - demand.cpu, self.memory - demand.memory, free)


class Fragmentation:
    """The measure for one distribution of demands.

    Everything that depends on the distribution is worked out once per coarse shape (CPU and memory
    rounded down to an amount that some demand asks for) and kept, because there are few of them.
    """

    def __init__(self, weights: Mapping[Demand, float]) -> None:
        """`weights`: how often each demand comes; they need not add up to 1."""
        total = sum(weights.values())
        if not weights or total <= 0 or min(weights.values()) < 0:
            raise refuse(BadRequest, because("workload_without_weight"))
        self._shares = {d: w / total for d, w in weights.items() if w > 0}
        kinds = sorted({(d.milli, d.devices) for d in self._shares if d.devices})
        self._kinds = tuple(kinds)
        self._cpus = sorted({d.cpu for d in self._shares})
        self._memories = sorted({d.memory for d in self._shares})
        self._runnable: dict[tuple[str, int, int], tuple[float, ...]] = {}
        self._reach: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._usable: dict[tuple[str, int, int, tuple[int, ...]], float] = {}

    @property
    def shares(self) -> Mapping[Demand, float]:
        """Demand -> its share of the workload; the shares add up to 1."""
        return self._shares

    def usable(self, shape: Shape) -> float:
        """Free thousandths that a task drawn from the workload can use here, as an expectation."""
        cpus = bisect_right(self._cpus, shape.cpu)
        memories = bisect_right(self._memories, shape.memory)
        key = (shape.model, cpus, memories, shape.free)
        found = self._usable.get(key)
        if found is None:
            runnable = self._runnable.get(key[:3])
            if runnable is None:
                runnable = self._runnable[key[:3]] = self._weigh(*key[:3])
            reach = self._reach.get(shape.free)
            if reach is None:
                reach = self._reach[shape.free] = self._extend(shape.free)
            found = self._usable[key] = sum(map(mul, runnable, reach))
        return found

    def fragmented(self, shape: Shape) -> float:
        """Free thousandths that such a task cannot use here, as an expectation."""
        return sum(shape.free) - self.usable(shape)

    def gradient(self, shape: Shape, demand: Demand, option: int) -> float:
        """What placing the demand on that option adds to `fragmented`; below 0: it lessens it."""
        return self.usable(shape) - self.usable(shape.after(demand, option)) - demand.capacity

    def _weigh(self, model: str, cpus: int, memories: int) -> tuple[float, ...]:
        """For each kind of device demand, the share of the workload that CPU, memory and the
        device model allow."""
        shares = dict.fromkeys(self._kinds, 0.0)
        if cpus and memories:
            cpu, memory = self._cpus[cpus - 1], self._memories[memories - 1]
            for demand, share in self._shares.items():
                allowed = not demand.models or model in demand.models
                if demand.devices and demand.cpu <= cpu and demand.memory <= memory and allowed:
                    shares[demand.milli, demand.devices] += share
        return tuple(shares.values())

    def _extend(self, free: tuple[int, ...]) -> tuple[int, ...]:
        """For each kind of device demand, the thousandths that it could use."""
        found = []
        for milli, devices in self._kinds:
            at = bisect_left(free, milli)
            found.append(sum(free[at:]) if len(free) - at >= devices else 0)
        return tuple(found)
