"""The devices of one type in a cluster: what is free where, and what could be freed.

For each threshold of harm (see `harm`) every open node that has devices free or could free some is
in the bucket of their number. The node that fits best is the first of the first bucket that is not
empty, so a search costs the number of devices of a node, not the number of nodes, and a change
costs a move between two buckets for each threshold that it concerns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from .claims import Claim
from .harm import COUNTED, FREE_SLOT, IDLE_SLOT, SLOT_COUNT, SLOTS

ANY: Final = 1 << 60
"""More devices than there are."""

Placement = dict[int, int]
"""node -> devices there: how many, or which (bit mask)."""


@dataclass(slots=True, eq=False)
class Node:
    """One node: its devices as bits of a mask, in islands that have a fast link among them."""

    index: int
    id: str
    size: int
    rack: str = ""
    islands: tuple[int, ...] = ()
    free: int = 0
    """Mask of devices that nobody has."""
    open: bool = True
    """False: cordoned or draining; nothing new is placed here."""
    available: list[int] = field(default_factory=list)
    """slot of harm -> devices that are free or could be freed; but for free ones as of when the
    pool was looked at last, see `Pool.refresh`."""
    ends: list[int] = field(default_factory=list)
    """slot -> devices that are taken, and could be freed from this slot on."""
    holders: dict[Claim, int] = field(default_factory=dict)
    """claim -> mask; a claim that moves or resizes is in with all it has."""
    lost: bool = False
    draining: bool = False
    """Whoever comes back to rest on it has to leave it as well."""

    @property
    def full(self) -> int:
        return (1 << self.size) - 1


@lru_cache(maxsize=1 << 16)
def pick(free: int, count: int, islands: tuple[int, ...]) -> int:
    """Which `count` devices of the mask `free` to take: all in the island that they fit best in, or
    as few islands as possible; the lowest ones there."""
    rooms = [(free & island) for island in islands] or [free]
    fitting = [room for room in rooms if room.bit_count() >= count]
    if fitting:
        return lowest(min(fitting, key=int.bit_count), count)
    taken = 0
    for room in sorted(rooms, key=int.bit_count, reverse=True):
        taken |= lowest(room, min(count - taken.bit_count(), room.bit_count()))
        if taken.bit_count() == count:
            break
    return taken


def lowest(mask: int, count: int) -> int:
    """The lowest `count` bits of `mask`."""
    taken = 0
    for _ in range(count):
        bit = mask & -mask
        taken |= bit
        mask ^= bit
    return taken


class Pool:
    """All nodes with one type of device. Called by the engine alone."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.by_id: dict[str, Node] = {}
        self.largest = 0
        """Devices of the largest node there ever was."""
        self.capacity = 0
        """Devices of nodes that are not lost."""
        self.free = 0
        """Free devices of the open nodes."""
        self._total = [0] * len(SLOTS)
        self._buckets: list[list[dict[int, None]]] = [[{}] for _ in SLOTS]
        self.free_buckets = self._buckets[FREE_SLOT]
        """number of free devices -> nodes that have so many; always up to date."""
        self._stale: dict[Node, None] = {}
        """Nodes that changed since anything but free devices was looked at. Most of the time nobody
        waits, and then nobody looks."""
        self.known = False
        """Something is known to find no place."""
        self.failed = [ANY] * len(SLOTS)
        """slot -> the smallest demand for one node that is known to find no place, nor any larger
        one. A node that has more to give, or the same with less harm, raises it again."""
        self.failed_risk = [ANY] * len(SLOTS)
        """The same for those that may take less from others than who else goes as far: see
        `victims.careful`."""
        self.careful = False
        """There is something in `failed_risk`."""
        self.failed_gang: list[tuple[int, int]] = [(ANY, 0)] * len(SLOTS)
        """slot -> (the smallest demand for several nodes that found no place, what was available
        then up to this slot)."""

    # -- what there is ----------------------------------------------------------------------

    @property
    def total(self) -> list[int]:
        """slot -> available devices of the open nodes; `free` has those of the first one."""
        self.refresh()
        self._total[FREE_SLOT] = self.free
        return self._total

    @property
    def buckets(self) -> list[list[dict[int, None]]]:
        """slot -> number of available devices -> nodes that have so many."""
        self.refresh()
        return self._buckets

    def refresh(self) -> None:
        """Bring the indices of all slots up to date."""
        if self._stale:
            for node in self._stale:
                self._refresh(node)
            self._stale.clear()

    def _refresh(self, node: Node) -> None:
        available, ends, open_ = node.available, node.ends, node.open
        total = self._total
        index: Any = node.index  # compiled, an `int` becomes an object at each use of it as a key
        now, more = available[FREE_SLOT], False
        for slot in range(FREE_SLOT + 1, SLOT_COUNT):
            now += ends[slot]
            was = available[slot]
            if was == now:
                continue
            more = more or now > was
            available[slot] = now
            if open_:
                buckets = self._buckets[slot]
                if was:
                    del buckets[was][index]
                if now:
                    buckets[now][index] = None
                total[slot] = total[slot] + now - was  # compiled, `+=` is slower here
        if more and open_ and self.known:
            self._remember(node)

    def _remember(self, node: Node) -> None:
        """What is known to find no place may find one on this node."""
        for failed in (self.failed, self.failed_risk) if self.careful else (self.failed,):
            for slot, count in enumerate(failed):
                if node.available[slot] >= count:
                    failed[slot] = node.available[slot] + 1

    # -- nodes ------------------------------------------------------------------------------

    def add(self, id: str, size: int, rack: str = "", islands: tuple[int, ...] = ()) -> Node:
        """A node that is new, or one that was lost and is back with nothing on it."""
        node = self.by_id.get(id)
        if node is None:
            node = Node(len(self.nodes), id, size, rack, islands)
            self.nodes.append(node)
            self.by_id[id] = node
        node.size, node.rack = size, rack
        rest = node.full & ~sum(islands)
        node.islands = (*islands, rest) if islands and rest else islands
        node.free, node.lost, node.open, node.draining = node.full, False, True, False
        node.available, node.ends = [size] * SLOT_COUNT, [0] * (SLOT_COUNT + 1)
        for buckets in self._buckets:
            buckets.extend({} for _ in range(size + 1 - len(buckets)))
        self.largest = max(self.largest, size)
        self.capacity += size
        self._enter(node)
        return node

    def _enter(self, node: Node) -> None:
        self.refresh()
        for slot, available in enumerate(node.available):
            if available:
                self._buckets[slot][available][node.index] = None
            self._total[slot] += available
        self.free += node.available[FREE_SLOT]
        self.freed()

    def _leave(self, node: Node) -> None:
        self.refresh()
        for slot, available in enumerate(node.available):
            if available:
                del self._buckets[slot][available][node.index]
            self._total[slot] -= available
        self.free -= node.available[FREE_SLOT]

    def close(self, node: Node) -> None:
        """Nothing new is placed on it."""
        if node.open:
            self._leave(node)
            node.open = False

    def reopen(self, node: Node) -> None:
        if not node.open and not node.lost:
            self.refresh()  # of what left it meanwhile, while it is in no bucket
            node.open, node.draining = True, False
            self._enter(node)

    def lose(self, node: Node) -> None:
        """It is gone; whoever was on it must have been released before."""
        self.close(node)
        if not node.lost:
            node.lost = True
            self.capacity -= node.size

    # -- devices ----------------------------------------------------------------------------

    def change(self, node: Node, count: int, harm: int) -> None:
        """`count` devices of the class `harm` are taken (> 0), or are free again (< 0)."""
        node.ends[COUNTED[harm]] += count
        was = node.available[FREE_SLOT]
        now = was - count
        node.available[FREE_SLOT] = now
        if node.open:
            if was:
                del self.free_buckets[was][node.index]
            if now:
                self.free_buckets[now][node.index] = None
            self.free -= count
        self._changed(node)
        if self.known and node.open and count < 0:
            self._remember(node)

    def _changed(self, node: Node) -> None:
        self._stale[node] = None
        if self.known:
            self.refresh()

    def count_in(self, claim: Claim, entries: tuple[tuple[int, int, int], ...]) -> None:
        """Count what a claim holds as `entries` (node, harm, devices) from now on."""
        before = claim.entries
        if before == entries:
            return
        claim.entries = entries
        if len(before) == len(entries) == 1:
            (node, old, count), (same, new, again) = before[0], entries[0]
            if node == same and count == again:
                self._reclass(self.nodes[node], count, old, new)
                return
        for node, harm, count in before:
            self.change(self.nodes[node], -count, harm)
        for node, harm, count in entries:
            self.change(self.nodes[node], count, harm)

    def _reclass(self, node: Node, count: int, old: int, new: int) -> None:
        node.ends[COUNTED[old]] -= count
        node.ends[COUNTED[new]] += count
        self._changed(node)

    def freed(self) -> None:
        """Whatever found no place may find one now."""
        self.known = False
        self.failed = [ANY] * len(SLOTS)
        if self.careful:
            self.failed_risk, self.careful = [ANY] * len(SLOTS), False
        self.failed_gang = [(ANY, 0)] * len(SLOTS)

    def note_failed(self, count: int, slot: int, careful: bool = False) -> None:
        """Nothing was found for `count` devices, nor for who may take less than `slot`, down to
        idle ones: so there is nothing for more devices either, until a node has more to give."""
        self.refresh()
        self.known = True
        if count > self.largest:
            if slot != FREE_SLOT:
                self.failed_gang[slot] = (count, sum(self.total[: slot + 1]))
            return
        failed = self.failed_risk if careful else self.failed
        self.careful = self.careful or careful
        for lower in range(min(slot, IDLE_SLOT), slot + 1):
            failed[lower] = min(failed[lower], count)

    def hopeless(self, count: int, slot: int, careful: bool = False) -> bool:
        """Whether it is known that this finds no place."""
        if count <= self.largest:
            return self.failed[slot] <= count or (careful and self.failed_risk[slot] <= count)
        if self.free < count and (slot == FREE_SLOT or self.total[slot] < count):
            return True
        if not self.known:
            return False
        failed, available = self.failed_gang[slot]
        return failed <= count and sum(self.total[: slot + 1]) <= available

    # -- searches ---------------------------------------------------------------------------

    def _of(self, slot: int) -> list[dict[int, None]]:
        return self.free_buckets if slot == FREE_SLOT else self.buckets[slot]

    def best(self, count: int, slot: int = FREE_SLOT) -> Node | None:
        """The node with the fewest devices to give that has `count` of them."""
        for bucket in self._of(slot)[count:]:
            if bucket:
                return self.nodes[next(iter(bucket))]
        return None

    def having(self, count: int, slot: int) -> Iterator[Node]:
        """The nodes that have `count` to give, those with fewest first; not while it changes."""
        for bucket in self._of(slot)[count:]:
            for index in bucket:
                yield self.nodes[index]

    def some(self, count: int, slot: int, limit: int) -> list[Node]:
        """Up to `limit` nodes that have `count` to give, those with fewest first."""
        return list(islice(self.having(count, slot), limit))

    def place(self, count: int, slot: int = FREE_SLOT) -> Placement | None:
        """node -> how many there, for `count` devices: on one node when one is large enough for
        it; else on as few as possible, in as few racks as possible."""
        if count <= self.largest:
            node = self.best(count, slot)
            return None if node is None else {node.index: count}
        if self.free < count and (slot == FREE_SLOT or self.total[slot] < count):
            return None
        return self._gang(count, slot)

    def _gang(self, count: int, slot: int) -> Placement:
        placed: Placement = {}
        missing, buckets = count, self._of(slot)
        for size in range(self.largest, 0, -1):
            bucket = buckets[size]
            if not bucket:
                continue
            for index in self._by_rack(bucket, missing // size):
                if missing < size:  # the rest fits best on another node, if there is one
                    rest = next(
                        (i for b in buckets[missing:size] for i in b if i not in placed),
                        None,
                    )
                    placed[index if rest is None else rest] = missing
                    return placed
                placed[index] = size
                missing -= size
                if missing == 0:
                    return placed
        return placed

    def _by_rack(self, bucket: Iterable[int], wanted: int) -> list[int]:
        """The nodes of a bucket, those of the rack first that has just enough of them."""
        racks: dict[str, list[int]] = {}
        for index in bucket:
            racks.setdefault(self.nodes[index].rack, []).append(index)
        if len(racks) == 1:
            return list(bucket)
        enough = [r for r in racks.values() if len(r) >= wanted]
        rest = sorted(racks.values(), key=len, reverse=True)
        if enough and wanted:
            first = min(enough, key=len)
            rest = [first, *(r for r in rest if r is not first)]
        return [index for rack in rest for index in rack]
