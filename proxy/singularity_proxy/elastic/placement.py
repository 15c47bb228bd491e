"""Which virtual devices share a physical one, and which may not.

Ranks that share a device run one after the other there. That costs memory for one of them only
while they are replicas: what is equal is held once. Ranks that hold different shards of a model
(tensor, pipeline, sharded data parallelism) have nothing in common, so they get devices of their
own, and a placement that cannot give them any is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from singularity_proxy.errors import BadRequest, LayoutRefused

REPLICAS = frozenset({"dp", "ddp", "data", "replicate", "replica", "replicas"})
"""Words in a group's description that say: its ranks hold the same parameters."""
SHARDS = frozenset({"shard", "shards", "sharded", "fsdp"})
"""Words that say they do not, whatever else the description says: "dp_shard"."""


@dataclass(frozen=True)
class Group:
    """A process group as placement sees it."""

    name: str
    """Its description in `torch.distributed` (`new_group(group_desc=...)`, a mesh's dimension)."""
    members: tuple[int, ...]
    """The virtual devices of its ranks."""
    elsewhere: int = 0
    """So many more ranks it has, on other nodes (in a part of a gang)."""


def replicas(virtual: int, groups: Iterable[Group] = ()) -> list[list[int]]:
    """The sets of virtual devices that may share a physical one, each in order.

    Without groups, or with groups of all ranks only, all are one set: replicas, or devices that one
    process uses as it likes. As soon as a smaller group exists, only ranks that are together in a
    group called after data parallelism (`REPLICAS`) may share; a description that says nothing is
    taken for a group of shards.
    """
    known = [g for g in groups if len(set(g.members)) + g.elsewhere > 1]
    ranks = {v for g in known for v in g.members}
    most = max((g.elsewhere for g in known), default=0)
    smaller = [g for g in known if set(g.members) != ranks or g.elsewhere < most]
    if not smaller:
        return [list(range(virtual))]
    first = list(range(virtual))  # of each virtual device: the lowest one that it may share with

    def root(v: int) -> int:
        while first[v] != v:
            v = first[v]
        return v

    for group in smaller:
        words = set(re.split(r"[^a-z]+", group.name.lower()))
        if words & REPLICAS and not words & SHARDS:
            for v in group.members[1:]:
                one, other = sorted((root(group.members[0]), root(v)))
                first[other] = one
    sets: dict[int, list[int]] = {}
    for v in range(virtual):
        sets.setdefault(root(v), []).append(v)
    return list(sets.values())


def place(
    virtual: int,
    physical: Sequence[str],
    *,
    sets: Sequence[Sequence[int]] = (),
    now: Sequence[str] = (),
) -> list[str]:
    """The physical device of each virtual one: all of `physical` are used, and in each of `sets`
    (default: all are one) neighbours share, as evenly as it goes.

    Where it does not matter, virtual devices stay where they are `now`. Raises BadRequest for no
    device, the same one twice or more than `virtual`, and LayoutRefused when virtual devices of
    different sets would have to share.
    """
    if not 1 <= len(physical) <= virtual or len(set(physical)) < len(physical):
        raise BadRequest(
            f"{virtual} virtual devices run on 1 to {virtual} different physical ones, "
            f"not on {', '.join(physical) or 'none'}",
            virtual=virtual,
        )
    classes = [list(s) for s in sets] or [list(range(virtual))]
    if len(physical) < len(classes):
        raise LayoutRefused(
            f"the {virtual} ranks of this session hold {len(classes)} different shards, and only "
            f"replicas of the same shard may share a device, so it needs at least {len(classes)} "
            f"devices, not {len(physical)}; nothing was changed (groups of replicas say so by "
            "their description, new_group(group_desc='dp'))",
            devices=len(physical),
            least=len(classes),
        )
    blocks = [
        block
        for ranks, count in zip(classes, _shares(classes, len(physical)), strict=True)
        for block in _split(ranks, count)
    ]
    where = [""] * virtual
    for block, device in zip(blocks, _assign(blocks, physical, now), strict=True):
        for v in block:
            where[v] = device
    return where


def moved(before: Sequence[str], after: Sequence[str]) -> list[int]:
    """The virtual devices that get another physical one."""
    return [v for v, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]


def _shares(classes: Sequence[Sequence[int]], devices: int) -> list[int]:
    """How many devices each class gets: one, and the next to the one with the most ranks each."""
    counts = [1] * len(classes)
    for _ in range(devices - len(classes)):
        most = max(range(len(classes)), key=lambda i: len(classes[i]) / counts[i])
        counts[most] += 1
    return counts


def _split(ranks: Sequence[int], count: int) -> list[list[int]]:
    """Neighbours together; sizes differ by one at most, larger ones first."""
    size, more = divmod(len(ranks), count)
    ends = [(i + 1) * size + min(i + 1, more) for i in range(count)]
    return [list(ranks[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def _assign(
    blocks: Sequence[Sequence[int]], physical: Sequence[str], now: Sequence[str]
) -> list[str]:
    """A device for each block: where most of it is already, else in order."""
    staying = sorted(
        (
            (-sum(v < len(now) and now[v] == device for v in block), i, j)
            for i, block in enumerate(blocks)
            for j, device in enumerate(physical)
        ),
    )
    chosen: dict[int, str] = {}
    for _, i, j in staying:
        if i not in chosen and physical[j] not in chosen.values():
            chosen[i] = physical[j]
    return [chosen[i] for i in range(len(blocks))]
