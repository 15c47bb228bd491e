"""Baselines that take devices from those who run: an order of those, and whom each may be taken
from. As many leave as are needed, the last in order first; what they leave is kept for the one it
was taken for, as our policy does it.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from singularity_scheduler.core.allocation.claims import Claim, Stage
from singularity_scheduler.core.allocation.pool import Placement, Pool

from .base import Baseline, Rank

Entry = tuple[Rank, int, Claim]
"""(how it stands, its order, who)."""


class Preemptive(Baseline):
    """`stands` is the order of those who run, ascending; `beats` whether one who waits goes before
    one of them. If it holds for somebody, it must hold for all who stand behind that one, and for
    all who wait with a smaller rank. What time alone does must not make it hold."""

    overtakes = True
    rule = "preempt.service"

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self.running: dict[Pool, list[Entry]] = {}
        """Those who may lose their devices, in order."""
        self.entries: dict[Claim, Entry] = {}
        self.served: dict[Claim, float] = {}
        """Seconds that each has worked before it had its devices last."""

    # -- for the policies -------------------------------------------------------------------

    def stands(self, claim: Claim, now: float) -> Rank:
        """The place among those who run of one that just got its devices."""
        return self.rank(claim, now)

    def beats(self, rank: Rank, stands: Rank, now: float) -> bool:
        """Whether one who waits with `rank` may take devices from one who `stands` there."""
        return rank < stands

    def takes_from(self, claim: Claim) -> bool:
        """Whether this one ever loses its devices."""
        return claim.kind != "interactive"

    # -- who runs ---------------------------------------------------------------------------

    def held_now(self, pool: Pool, claim: Claim, now: float) -> None:
        if self.takes_from(claim):
            self.stand(pool, claim, self.stands(claim, now))

    def stand(self, pool: Pool, claim: Claim, stands: Rank) -> None:
        """Put one who runs in its place, also when it was somewhere else."""
        self._leave(pool, claim)
        entry = (stands, claim.order, claim)
        insort(self.running.setdefault(pool, []), entry)
        self.entries[claim] = entry

    def _leave(self, pool: Pool, claim: Claim) -> None:
        entry = self.entries.pop(claim, None)
        if entry is not None:
            line = self.running[pool]
            del line[bisect_left(line, entry)]

    def gone(self, pool: Pool, claim: Claim, now: float) -> None:
        self._leave(pool, claim)
        self.served[claim] = self.worked(claim, now)

    def over(self, claim: Claim, now: float) -> None:
        self.served.pop(claim, None)

    def worked(self, claim: Claim, now: float) -> float:
        """Seconds that it has worked, without its ways back."""
        before = self.served.get(claim, 0.0)
        if claim.stage is Stage.HELD:
            return before + max(0.0, now - claim.serves_from)
        return before

    # -- taking devices ---------------------------------------------------------------------

    def clear(self, pool: Pool, claim: Claim, now: float) -> bool:
        line = self.running.get(pool)
        rank = self.ranks[claim]
        if not line or not self.beats(rank, line[-1][0], now):
            return False
        one = claim.devices <= pool.largest
        found = self._one_node(pool, claim, now) if one else self._many(pool, claim, now)
        if found is None:
            return False
        self._gather(pool, claim, *found, now)
        return True

    def _one_node(
        self, pool: Pool, claim: Claim, now: float
    ) -> tuple[Placement, list[Claim]] | None:
        """The node on which those who leave stand last."""
        count, rank, nodes = claim.devices, self.ranks[claim], pool.nodes
        room: dict[int, int] = {}
        for stands, _, victim in reversed(self.running[pool]):
            if not self.beats(rank, stands, now):
                return None
            for index, mask in victim.given.items():
                before = room.get(index)
                if before is None:
                    node = nodes[index]
                    before = node.free.bit_count() if node.open else -1 << 30
                room[index] = now_free = before + mask.bit_count()
                if now_free >= count:
                    return {index: count}, self._fewest(pool, claim, index, now_free, victim)
        return None

    def _fewest(self, pool: Pool, claim: Claim, index: int, room: int, last: Claim) -> list[Claim]:
        """Who leaves a node on which all from `last` on make `room`: nobody needlessly."""
        least = self.entries[last]
        leaving = []
        for victim in pool.nodes[index].holders:
            entry = self.entries.get(victim)
            if entry is not None and entry >= least:
                leaving.append((entry, victim))
        for found in sorted(leaving):
            part = found[1].given[index].bit_count()
            if room - part >= claim.devices:
                room -= part
                leaving.remove(found)
        return [victim for _, victim in leaving]

    def _many(self, pool: Pool, claim: Claim, now: float) -> tuple[Placement, list[Claim]] | None:
        """For a gang of several nodes: all who stand last, wherever they are."""
        count, rank = claim.devices, self.ranks[claim]
        room = {node.index: node.free.bit_count() for node in pool.nodes if node.open}
        total = sum(room.values())
        leaving: list[Claim] = []
        for stands, _, victim in reversed(self.running[pool]):
            if total >= count:
                break
            if not self.beats(rank, stands, now):
                return None
            leaving.append(victim)
            for index, mask in victim.given.items():
                if index in room:
                    room[index] += mask.bit_count()
                    total += mask.bit_count()
        if total < count:
            return None
        plan: Placement = {}
        for index in sorted(room, key=lambda i: (-room[i], i)):
            plan[index] = min(count, room[index])
            count -= plan[index]
            if not count:
                break
        return plan, [victim for victim in leaving if not plan.keys().isdisjoint(victim.given)]

    def _gather(
        self, pool: Pool, claim: Claim, plan: Placement, leaving: list[Claim], now: float
    ) -> None:
        state = self.state
        state.account.advance(claim, now)
        self.ranks.pop(claim)
        claim.token += 1
        claim.stage, claim.plan, claim.count = Stage.GATHERING, plan, 0
        parts = {i: min(n, pool.nodes[i].free.bit_count()) for i, n in plan.items()}
        claim.given = state.take(pool, claim, {i: n for i, n in parts.items() if n})
        for victim in leaving:
            claim.lacks[victim.id] = None
            self.gone(pool, victim, now)
            state.preempt(pool, victim, now, self.rule, claim)
        state.recount(pool, claim)

    def handed(self, pool: Pool, claim: Claim, now: float) -> None:
        for index, count in claim.plan.items():
            node = pool.nodes[index]
            more = min(count - claim.given.get(index, 0).bit_count(), node.free.bit_count())
            if more > 0:
                taken = self.state.take(pool, claim, {index: more})
                claim.given[index] = claim.given.get(index, 0) | taken[index]
        if claim.lacks:
            self.state.recount(pool, claim)
            return
        if sum(mask.bit_count() for mask in claim.given.values()) < claim.devices:
            self.free(pool, claim, now)  # a node was lost meanwhile
            self.wait(claim, now)
            return
        self.hold(pool, claim, now, "place.cleared")
