"""Physical devices of nodes as the policy sees them."""

from __future__ import annotations

from dataclasses import dataclass

from singularity_scheduler.core.reasons.reason import Words


@dataclass(frozen=True)
class DeviceView:
    """One physical device of a node. Who holds it is the business of `ClusterState`."""

    id: str
    node: str
    type: str
    capacity_bytes: int
    name: str = ""
    uuid: str = ""
    """Of the card: it keeps it when it gets another number, and no other card has it."""

    @property
    def key(self) -> str:
        """What is remembered of a device belongs to this: its UUID; its id where it has none."""
        return self.uuid or self.id

    @property
    def sort_key(self) -> tuple[str, int, str]:
        """ "cpu:2" before "cpu:10"."""
        kind, _, index = self.id.partition(":")
        return (kind, int(index), "") if index.isdigit() else (kind, -1, index)


@dataclass(frozen=True)
class DeviceHealth:
    """What a node reports of one device. None: the device does not tell."""

    id: str
    uuid: str = ""
    present: bool = True
    """False: its driver says that it is gone."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilisation_percent: float | None = None
    temperature_c: float | None = None
    temperature_limit_c: float | None = None
    """Where it slows itself down."""
    power_w: float | None = None
    power_limit_w: float | None = None
    ecc_corrected: int | None = None
    """Memory errors since its driver was loaded."""
    ecc_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    clock_limits: tuple[str, ...] = ()
    """What keeps its clocks down now, in words."""
    xids: tuple[tuple[int, float], ...] = ()
    """Newest driver errors: Xid code and UNIX time, oldest first."""
    silent_s: float = 0.0
    """How long its driver has not answered; the figures are as old."""
    trouble: str = ""
    """Why there are no figures, in one sentence."""
    hot_since: float | None = None
    """Since when it is at its limit of temperature; see `health.observed`."""


@dataclass(frozen=True)
class DeviceMark:
    """Whether a device is drained, why, and which of its faults are acknowledged. It is in the
    ledger: a restart does not forget it. It belongs to the card, not to its number."""

    node: str
    device: str
    """The number that the card has now, or had last."""
    uuid: str
    """`DeviceView.key` of the card."""
    drained: bool = False
    by: str = ""
    """Who drained or returned it; "": the scheduler, for what the device reported."""
    reason: Words = ""
    at: float = 0.0
    faults: tuple[str, ...] = ()
    """Keys of the faults it is drained for, or has since somebody drained it."""
    ignored: tuple[str, ...] = ()
    """Keys of faults that an administrator has acknowledged."""
    lasting: bool = False
    """Only an administrator returns it."""

    @property
    def by_itself(self) -> bool:
        """Drained by the scheduler."""
        return self.drained and not self.by

    @property
    def broken(self) -> bool:
        """Drained, by whomever, and it has a fault other than heat: its driver may never answer."""
        return self.drained and any(key != "hot" for key in self.faults)
