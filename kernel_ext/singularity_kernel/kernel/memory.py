"""How much device memory this session uses, read from the rings that this process has mapped.

The device proxy keeps three words in the header of each of its rings (layout: the proxy package's
``wire/ring.h``); reading them costs no call and wakes nobody, and a parked session stays parked.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

_MAGIC = 0x53494E4752494E47
_ATTACHED = 1


def device_memory(devices: Sequence[str], maps: str = "/proc/self/maps") -> list[dict[str, Any]]:
    """One entry per physical device: {device, current, peak, capacity (bytes), held}. `devices`
    are the physical devices by virtual device. Empty before the process has called a device."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(_mapped_rings(maps)):
        entry = _read(path)
        if entry is None:
            continue
        virtual = entry.pop("virtual")
        held = entry["held"] and virtual < len(devices)
        name = devices[virtual] if held else f"cuda:{virtual}"
        # The words are the whole proxy's: rings on one physical device tell the same.
        found[name] = {"device": name, **entry, "held": held}
    return list(found.values())


def _mapped_rings(maps: str) -> set[str]:
    try:
        with open(maps, encoding="utf-8", errors="replace") as file:
            paths = {line.rstrip("\n").partition("/")[2] for line in file}
    except OSError:
        return set()
    return {f"/{path}" for path in paths if path.endswith(".ring")}


def _read(path: str) -> dict[str, Any] | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None  # the session's rings are being removed
    try:
        header = os.pread(fd, 128, 0)
    finally:
        os.close(fd)
    if len(header) < 128 or struct.unpack_from("<Q", header, 0)[0] != _MAGIC:
        return None
    (virtual,) = struct.unpack_from("<I", header, 12)
    (state,) = struct.unpack_from("<I", header, 64)
    capacity, current, peak = struct.unpack_from("<3Q", header, 96)
    return {
        "virtual": virtual,
        "current": current,
        "peak": peak,
        "capacity": capacity,
        "held": state == _ATTACHED,
    }
