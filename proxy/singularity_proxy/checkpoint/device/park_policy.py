"""Which way a device is parked: by a copy of its live tensors, or by the driver. Pure; no I/O.

Both are right; they differ in time, and by how much depends on machine, driver and size. So every
park is measured, and the next one takes the way that is expected to be faster.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

AUTO = "auto"
COPY = "copy"
DRIVER = "driver"
WAYS = (AUTO, COPY, DRIVER)
"""What can be asked for; auto: whatever is expected to be faster."""
KEPT = 16
"""Measurements per way that are remembered."""
HOST_SHARE = 0.8
"""The part of the free host memory that a driver's park may fill."""
MAX_PENALTY = 64
"""After repeated failures the driver is left alone for at most so many parks."""


@dataclass(frozen=True)
class Measured:
    """One park and the resume after it."""

    device_bytes: int
    seconds: float
    """Until the device was free, plus until it was used again."""


@dataclass
class Measurements:
    """What is known about both ways on one device; the owner of its proxies keeps it."""

    taken: dict[str, list[Measured]] = field(default_factory=dict)
    failures: int = 0
    """Of the driver, in a row."""
    skipped: int = 0
    """Parks since its last failure."""

    def remember(self, way: str, measured: Measured) -> None:
        """A park that succeeded, with its resume."""
        self.taken[way] = [*self.taken.get(way, []), measured][-KEPT:]
        if way == DRIVER:
            self.failures = self.skipped = 0
        else:
            self.skipped += 1

    def failed(self) -> None:
        """The driver could not park or resume."""
        self.failures += 1
        self.skipped = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Measurements:
        """Raises ValueError when it is not what `to_json` wrote."""
        try:
            data: dict[str, Any] = json.loads(text)
            taken = {
                str(way): [Measured(int(m["device_bytes"]), float(m["seconds"])) for m in list_]
                for way, list_ in data["taken"].items()
            }
            return cls(taken, int(data["failures"]), int(data["skipped"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not remembered measurements: {error}") from error


@dataclass(frozen=True)
class Choice:
    way: str
    reason: str


def expected_s(measured: list[Measured], device_bytes: int) -> float | None:
    """Seconds that a park and resume of so many bytes should take; None: never measured.

    A straight line through what was measured (a fixed part and a rate, neither negative).
    """
    if not measured:
        return None
    n = len(measured)
    mean_x = sum(m.device_bytes for m in measured) / n
    mean_y = sum(m.seconds for m in measured) / n
    spread = sum((m.device_bytes - mean_x) ** 2 for m in measured)
    slope = 0.0
    if spread:
        slope = sum((m.device_bytes - mean_x) * (m.seconds - mean_y) for m in measured) / spread
    if slope <= 0 or mean_y - slope * mean_x < 0:  # one size only, or noise: all of it is rate
        slope = mean_y / mean_x if mean_x else 0.0
    return max(0.0, mean_y + slope * (device_bytes - mean_x))


def has_room(device_bytes: int, host_free_bytes: int) -> bool:
    """Whether a driver's park of so many bytes leaves the host enough memory."""
    return device_bytes <= host_free_bytes * HOST_SHARE


def choose(
    known: Measurements,
    *,
    device_bytes: int,
    host_free_bytes: int,
    driver: bool,
    recoverable: bool,
    wanted: str = AUTO,
) -> Choice:
    """The way to park now.

    `driver`: the machine has it. `recoverable`: the state of a proxy that dies can be rebuilt. The
    driver is taken only where a failure loses nothing and the host has room for the device's bytes;
    then each way is tried once, and from there on the faster one is taken, unless one is `wanted`.
    """
    if wanted == COPY:
        return Choice(COPY, "it is set so")
    if not driver:
        return Choice(COPY, "the driver cannot checkpoint a process here")
    if not recoverable:
        return Choice(COPY, "the session keeps no journal, so a failed driver would lose its state")
    if not has_room(device_bytes, host_free_bytes):
        return Choice(COPY, "the host has no room for all of the device's memory")
    if wanted == DRIVER:
        return Choice(DRIVER, "it is set so")
    pause = min(2**known.failures, MAX_PENALTY) if known.failures else 0
    if known.skipped < pause:
        return Choice(COPY, f"the driver failed {known.failures} times; it is tried again later")
    by_copy = expected_s(known.taken.get(COPY, []), device_bytes)
    by_driver = expected_s(known.taken.get(DRIVER, []), device_bytes)
    if by_driver is None:
        return Choice(DRIVER, "the driver was not measured yet")
    if by_copy is None:
        return Choice(COPY, "the copy was not measured yet")
    way, other = (DRIVER, by_copy) if by_driver < by_copy else (COPY, by_driver)
    return Choice(way, f"expected {min(by_copy, by_driver):.2f} s instead of {other:.2f} s")
