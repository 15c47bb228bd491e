"""What a device proxy tells of its ranks for the barrier, from the figures of its rings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def answer(rings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer to `barrier_ask`, from each ring's `stats` (see `elastic.coordinator.View`).

    A group's key is its id; "id:2>0" are the messages from its rank 2 to its rank 0, which count
    for both: the one has sent so many, the other has received them or waits for them.
    """
    groups: dict[str, dict[str, int]] = {}
    devices: dict[str, dict[str, int]] = {}
    names: dict[str, str] = {}
    sizes: dict[str, int] = {}
    open_: set[str] = set()
    held = True
    for ring in rings:
        own = [group for group in ring["groups"] if group["size"] > 1]
        if not own:
            continue
        # One that waits for others goes on by itself, but not before they do.
        held = held and bool(ring["stands"] or (ring["activity"] == "blocked" and ring["pending"]))
        for group in own:
            key, rank = group["id"], group["rank"]
            names[key], sizes[key] = group["name"], group["size"]
            groups.setdefault(key, {})[str(rank)] = group["contributed"]
            devices.setdefault(key, {})[str(rank)] = ring["virtual_device"]
            if group["consumed"] < group["contributed"]:
                open_.add(key)
            for other, count in group["sent"].items():
                groups.setdefault(f"{key}:{rank}>{other}", {})[str(rank)] = count
            for other, count in group["asked"].items():
                pair = f"{key}:{other}>{rank}"
                groups.setdefault(pair, {})[str(rank)] = count
                if group["received"].get(other, 0) < count:
                    open_.add(pair)
    return {
        "groups": groups,
        "open": sorted(open_),
        "names": names,
        "sizes": sizes,
        "devices": devices,
        "held": held,
    }
