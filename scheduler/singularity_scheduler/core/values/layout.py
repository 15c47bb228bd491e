"""Which physical device is behind each virtual one of a session. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def blocks(virtual: int, physical: int) -> list[range]:
    """The virtual devices 0, 1, ... in `physical` parts that follow each other, the larger ones
    first: (4, 3) -> 0-1, 2, 3."""
    least, more = divmod(virtual, physical)
    ends = [least * n + min(n, more) for n in range(physical + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]


def layout(virtual: int, devices: Sequence[str], before: Sequence[str] = ()) -> tuple[str, ...]:
    """Which of these physical devices is behind each virtual one: blocks of virtual devices that
    follow each other, so that as few as possible leave the device they have (`before`)."""
    if len(devices) == virtual and not before:
        return tuple(devices)
    parts = blocks(virtual, len(devices))
    left = dict.fromkeys(devices)
    chosen: list[str | None] = []
    for part in parts:
        keeps = next((before[v] for v in part if before and before[v] in left), None)
        left.pop(keeps or "", None)
        chosen.append(keeps)
    rest = iter(left)
    named = [next(rest) if device is None else device for device in chosen]
    return tuple(device for device, part in zip(named, parts, strict=True) for _ in part)


def told(leased: Sequence[str], placed: Sequence[str]) -> tuple[str, ...]:
    """Where the virtual devices are, by a node that was told to use `leased`: it may have chosen
    another order of the same devices, because not all of them may share one."""
    same = len(placed) == len(leased) and set(placed) == set(leased)
    return tuple(placed if same else leased)


def kept(before: Sequence[str], count: int) -> tuple[str, ...]:
    """The devices that one which gives some up goes on with: those behind the first virtual device
    of each part."""
    found = dict.fromkeys(before[part[0]] for part in blocks(len(before), count))
    found |= dict.fromkeys(before)
    return tuple(found)[:count]
