"""Nodes by shape: which node a demand goes to, without looking at every node. Pure.

Nodes with the same amounts free are equal to a judge of placements, so it judges shapes. For each
different demand a heap of judged shapes is kept; between two tasks of a kind only the shapes that
came into being in the meantime are judged.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random

from singularity_proxy.errors import Conflict, NotFound

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import refuse

from .fragmentation import WHOLE, Demand, Shape

Score = tuple[float, ...]
Judge = Callable[[Shape, Demand, int], Score]
"""What a placement costs: of shape, demand and option (see `Shape.options`); lower is better."""

_SPARE = 64
"""Entries that a heap may have beyond four times the live shapes before the dead ones go."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demand goes: the node and, in order, the positions of its devices there."""

    node: str
    devices: tuple[int, ...]


@dataclass(slots=True)
class _Room:
    number: int
    model: str
    cpu: int
    memory: int
    free: list[int]

    @property
    def shape(self) -> Shape:
        return Shape(self.model, self.cpu, self.memory, tuple(sorted(self.free)))


class _Ranking:
    """The shapes judged for one demand, best first."""

    __slots__ = ("heap", "seen")

    def __init__(self) -> None:
        self.heap: list[tuple[Score, Shape, int]] = []
        self.seen = -1


class Packer:
    """What is free on every node of a cluster, and the choice of a place under one judge."""

    def __init__(self, judge: Judge, rng: Random | None = None) -> None:
        """`rng`: of equal nodes take any one; None: the first one that was added."""
        self._judge = judge
        self._rng = rng
        self._rooms: dict[str, _Room] = {}
        self._names: list[str] = []
        self._alive: dict[Shape, list[int]] = {}
        self._born: list[Shape] = []
        self._dropped = 0
        self._rankings: dict[Demand, _Ranking] = {}

    def add(self, node: str, model: str, cpu: int, memory: int, devices: int) -> None:
        """A node with everything free. Of equal nodes the first one added is taken."""
        if node in self._rooms:
            raise refuse(Conflict, because("node_is_packed_already", node=node), node=node)
        room = _Room(len(self._names), model, cpu, memory, [WHOLE] * devices)
        self._names.append(node)
        self._rooms[node] = room
        self._enter(room)

    @property
    def shapes(self) -> Iterable[tuple[Shape, int]]:
        """Each shape that there is, with its number of nodes."""
        return ((shape, len(nodes)) for shape, nodes in self._alive.items())

    def shape(self, node: str) -> Shape:
        """What is free on the node."""
        return self._room(node).shape

    def free(self, node: str) -> tuple[int, ...]:
        """Thousandths left on each device of the node, by position."""
        return tuple(self._room(node).free)

    def judge_by(self, judge: Judge) -> None:
        """Use another judge from now on, such as one that knows the workload better."""
        self._judge = judge
        self._rankings.clear()

    def choose(self, demand: Demand) -> Place | None:
        """The best place for the demand now; None: it fits nowhere. Nothing is taken."""
        ranking = self._rankings.setdefault(demand, _Ranking())
        self._catch_up(ranking, demand)
        heap = ranking.heap
        while heap and heap[0][1] not in self._alive:
            heapq.heappop(heap)
        if not heap:
            return None
        ties = dict(self._ties(heap))
        if self._rng is None:
            shape = min(ties, key=lambda tie: self._alive[tie][0])
            number = self._alive[shape][0]
        else:
            shapes = list(ties)
            counts = [len(self._alive[tie]) for tie in shapes]
            shape = self._rng.choices(shapes, counts)[0]
            number = self._rng.choice(self._alive[shape])
        option = ties[shape]
        node = self._names[number]
        return Place(node, self._positions(self._rooms[node], demand, option))

    def place_on(self, node: str, demand: Demand) -> Place | None:
        """The best place for the demand on this node; None: it does not fit. Nothing is taken."""
        room = self._room(node)
        shape = room.shape
        if not shape.fits(demand):
            return None
        return Place(node, self._positions(room, demand, self._best(shape, demand)[1]))

    def take(self, place: Place, demand: Demand) -> None:
        """Occupy the place; `Conflict`, and nothing taken, if it is not free."""
        room = self._room(place.node)
        short = any(room.free[at] < demand.milli for at in place.devices)
        if (
            short
            or len(set(place.devices)) != demand.devices
            or room.cpu < demand.cpu
            or room.memory < demand.memory
        ):
            raise refuse(
                Conflict, because("no_room_for_demand", node=place.node, demand=str(demand))
            )
        self._change(room, place, demand, -1)

    def give_back(self, place: Place, demand: Demand) -> None:
        """Free what `take` occupied."""
        room = self._room(place.node)
        if any(room.free[at] + demand.milli > WHOLE for at in place.devices):
            raise refuse(Conflict, because("demand_not_there", node=place.node, demand=str(demand)))
        self._change(room, place, demand, 1)

    def _room(self, node: str) -> _Room:
        if node not in self._rooms:
            raise refuse(NotFound, because("no_node_in_cluster", node=node), node=node)
        return self._rooms[node]

    def _change(self, room: _Room, place: Place, demand: Demand, sign: int) -> None:
        self._leave(room)
        room.cpu += sign * demand.cpu
        room.memory += sign * demand.memory
        for at in place.devices:
            room.free[at] += sign * demand.milli
        self._enter(room)

    def _enter(self, room: _Room) -> None:
        shape = room.shape
        nodes = self._alive.get(shape)
        if nodes is None:
            self._alive[shape] = [room.number]
            self._born.append(shape)
        else:
            insort(nodes, room.number)

    def _leave(self, room: _Room) -> None:
        shape = room.shape
        nodes = self._alive[shape]
        del nodes[bisect_left(nodes, room.number)]
        if not nodes:
            del self._alive[shape]

    def _catch_up(self, ranking: _Ranking, demand: Demand) -> None:
        if len(self._born) > 4 * len(self._alive) + _SPARE:
            self._dropped += len(self._born)
            self._born.clear()
        now = self._dropped + len(self._born)
        fresh: Iterable[Shape]
        if ranking.seen < self._dropped:
            ranking.heap.clear()
            fresh = self._alive
        else:
            fresh = dict.fromkeys(self._born[ranking.seen - self._dropped :])
        ranking.seen = now
        heap = ranking.heap
        for shape in fresh:
            if shape in self._alive and shape.fits(demand):
                score, option = self._best(shape, demand)
                heapq.heappush(heap, (score, shape, option))
        if len(heap) > 4 * len(self._alive) + _SPARE:
            live = {entry[1]: entry for entry in heap if entry[1] in self._alive}
            heap[:] = live.values()
            heapq.heapify(heap)

    def _best(self, shape: Shape, demand: Demand) -> tuple[Score, int]:
        return min((self._judge(shape, demand, option), option) for option in shape.options(demand))

    def _ties(self, heap: list[tuple[Score, Shape, int]]) -> Iterator[tuple[Shape, int]]:
        """The best shapes of a heap; in a heap they hang together from the top."""
        best, stack = heap[0][0], [0]
        while stack:
            at = stack.pop()
            if at < len(heap) and heap[at][0] == best:
                if heap[at][1] in self._alive:
                    yield heap[at][1:]
                stack += (2 * at + 1, 2 * at + 2)

    @staticmethod
    def _positions(room: _Room, demand: Demand, option: int) -> tuple[int, ...]:
        if not demand.devices:
            return ()
        wanted = WHOLE if demand.milli == WHOLE else option
        found = [at for at, free in enumerate(room.free) if free == wanted]
        return tuple(found[: demand.devices])
