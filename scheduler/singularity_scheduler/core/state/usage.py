"""What a session used of the platform, from the lines of its history. Pure.

At each moment a session spends its time in one way: `SPENT` says in which. Device time is the time
under a lease, from the grant until its node has freed the devices: nobody else could have them
meanwhile. Those that share a device have it by turns, so each has its part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from singularity_scheduler.core.values.states import FINAL, LEASED, DeviceState, ProcessState

DAY_S = 86_400.0

OVER = "over"
"""Spends no time any more."""
NOTHING = ""
"""It is there and uses nothing that is counted."""


@dataclass
class Usage:
    """Sums of accounting; `client.usage.FIGURES` says what each is."""

    sessions: int = 0
    queued_s: float = 0.0
    waiting_s: float = 0.0
    device_s: float = 0.0
    parked_s: float = 0.0
    suspended_s: float = 0.0
    preemptions: int = 0
    checkpoints: int = 0
    stored_bytes: int = 0
    sent_bytes: int = 0

    def add(self, other: Usage) -> None:
        for name in NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


NAMES = tuple(field.name for field in fields(Usage))

_AWAY = (ProcessState.SUSPENDING, ProcessState.SUSPENDED, ProcessState.RESUMING)
_LIVE = {DeviceState.WAITING: "waiting_s", DeviceState.PARKED: "parked_s"}


def _spent(process: ProcessState, device: DeviceState) -> str:
    if device in LEASED:
        return "device_s"
    if process in FINAL:
        return OVER
    if process is ProcessState.QUEUED:
        return "queued_s"
    return "suspended_s" if process in _AWAY else _LIVE.get(device, NOTHING)


SPENT: dict[tuple[str, str], str] = {
    (process.value, device.value): _spent(process, device)
    for process in ProcessState
    for device in DeviceState
}
"""(process state, device state) -> the figure that the time counts for."""


def preempted(device: str, rule: str) -> bool:
    """Whether this line of a history took the session's devices for another one."""
    takes = rule.startswith("preempt.") or rule == "user.preempt"
    return takes and device == DeviceState.PARKING.value


class Meter:
    """Counts one session from `since` to `until` (UNIX seconds): give it, in order, the line of its
    history that holds at `since` and those after it, then `close` it. What it found is by day
    (their number since 1970, in UTC) with `daily`, else all in one, as day 0; no day on which the
    session was not there."""

    def __init__(self, devices: int, since: float, until: float, daily: bool = False) -> None:
        """`devices`: how many physical ones it has when a line does not say: as many as virtual."""
        self.found: dict[int, Usage] = {}
        self._usually = self._devices = devices
        self._since, self._until = since, until
        self._daily = daily
        self._at = since
        self._as = OVER

    def line(
        self, at: float, process: str, device: str, rule: str, devices: int | None = None
    ) -> None:
        """It was like this from `at` on, with so many physical devices."""
        self._spend(at)
        self._devices = self._usually if devices is None else devices
        self._as = SPENT[process, device]
        if self._since <= at < self._until:
            self._usage(at).preemptions += preempted(device, rule)

    def checkpoint(self, at: float, stored_bytes: int, sent_bytes: int) -> None:
        """One was made."""
        usage = self._usage(at)
        usage.checkpoints += 1
        usage.stored_bytes += stored_bytes
        usage.sent_bytes += sent_bytes

    def close(self, at: float) -> None:
        """It went on like this until `at`: its end, or the end of what is counted."""
        self._spend(at)
        self._as = OVER

    def _spend(self, end: float) -> None:
        # A clock that was set back must not count anything twice.
        start, end = self._at, min(end, self._until)
        if end <= start:
            return
        self._at = end
        while self._as != OVER and start < end:
            cut = min(end, (start // DAY_S + 1) * DAY_S) if self._daily else end
            usage = self._usage(start)
            if self._as != NOTHING:
                times = self._devices if self._as == "device_s" else 1
                setattr(usage, self._as, getattr(usage, self._as) + (cut - start) * times)
            start = cut

    def _usage(self, at: float) -> Usage:
        day = int(at // DAY_S) if self._daily else 0
        return self.found.setdefault(day, Usage(sessions=1))
