"""What an administrator may change of the policy while it runs: one frozen value. Pure.

A field's metadata say what it means (`help`), between what it must lie (`low`, `high`) and what the
least of it does (`off`). Documents, the command line and the documentation are made from them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Final, TypeGuard

from singularity_proxy.errors import BadRequest, NotFound

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import choices, refuse

MAX_THRESHOLDS: Final = 8
"""More levels of attained service than this are refused."""

ROUNDING = 1e-6
"""Device-seconds that sums of times may be off."""

_DAY = 86400.0


def _seconds(default: float, help: str, low: float = 0.0, high: float = 30 * _DAY) -> Any:
    return field(default=default, metadata={"help": help, "low": low, "high": high})


def _fraction(default: float, tier: str) -> Any:
    help = f"share of the asked device time that a {tier} session is to get in each window"
    return field(default=default, metadata={"help": help, "low": 0.0, "high": 1.0})


def _number(default: Any, help: str, low: float, high: float) -> Any:
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True)
class Parameters:
    """The figures of the policy. `_s` is seconds, `_fraction` a share from 0 to 1, `_device_s`
    devices times seconds. What is wrong with a set of them is refused when it is made."""

    idle_soft_s: float = _seconds(
        900.0,
        "a session whose devices were idle for this long is parked though nobody waits; "
        "0: only when somebody waits",
    )
    keep_max_s: float = _seconds(
        14400.0,
        "a session whose devices nobody uses can be kept alive for this long in all; 0: nobody may "
        "keep one",
        high=7 * _DAY,
    )
    idle_grace_s: float = _seconds(
        30.0, "devices must have been idle for this long before a session that waits takes them"
    )
    min_run_s: float = _seconds(
        60.0,
        "a session keeps devices that it just got for this long, idle or not; only a higher tier "
        "takes them earlier",
    )
    quantum_s: float = _seconds(
        300.0, "turn of a session that shares devices with others of its tier", low=1.0
    )
    slice_s: float = _seconds(
        120.0,
        "round of the sessions that share a device: each has it for this long times its share",
        low=1.0,
    )
    premium_fraction: float = _fraction(0.95, "premium")
    standard_fraction: float = _fraction(0.70, "standard")
    basic_fraction: float = _fraction(0.0, "basic")
    sla_window_s: float = _seconds(
        3600.0, "length of the windows in which the tiers' fractions are measured", low=60.0
    )
    headroom_fraction: float = _number(
        0.015,
        "share of the devices that other tiers leave free, so that a premium session need not wait "
        "until somebody has left; in the simulator alone so far",
        0.0,
        0.5,
    )
    las_thresholds_device_s: tuple[float, ...] = field(
        default=tuple(1800.0 * 4.0**level for level in range(MAX_THRESHOLDS)),
        metadata={
            "help": "attained device time at which a session goes one level down inside its tier: "
            f"up to {MAX_THRESHOLDS} rising numbers; none: all are on one level",
            "low": 1.0,
            "high": 1e12,
        },
    )
    relocate_after_s: float = _seconds(
        30.0,
        "a session that has waited for this long on a full node moves to one that has devices free "
        "for it; 0: never",
    )
    defrag_interval_s: float = _seconds(
        300.0,
        "moves that make room for larger sessions are to pay within this time, which is also that "
        "between two looks in the background; 0: never",
    )
    defrag_gain: float = _number(
        2.0, "a session is moved to make room when the gain is this many times the cost", 1.0, 1e6
    )
    starve_s: float = _seconds(
        86400.0,
        "a session that has waited for this long is served before the others of its tier, and may "
        "take devices from those of its own level; 0: never",
    )
    scale_interval_s: float = _seconds(
        120.0, "least time between two changes of a session's number of devices", low=1.0
    )
    backfill_depth: int = _number(
        100,
        "how many of those behind a session that cannot be placed are tried in its stead; "
        "0: nobody overtakes",
        0,
        100_000,
    )

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raise `BadRequest` with one sentence: the field, its bounds and what was given."""
        for entry in fields(self):
            _check(entry.name, getattr(self, entry.name), entry.metadata)
        tiers = (self.premium_fraction, self.standard_fraction, self.basic_fraction)
        if tuple(sorted(tiers, reverse=True)) != tiers:
            raise refuse(
                BadRequest,
                because("fractions_rise", fractions=tiers),
                parameter="standard_fraction",
            )

    def changed(self, **values: object) -> Parameters:
        """A copy with other values; `NotFound` for a name that there is not, `BadRequest` for a
        value that cannot be. Lists are taken for tuples, whole numbers for numbers."""
        for name in values:
            known(name)
        taken: dict[str, Any] = {name: _taken(name, value) for name, value in values.items()}
        return replace(self, **taken)

    def fraction(self, tier: str) -> float:
        """The guarantee of a tier ("premium", "standard" or "basic")."""
        return float(getattr(self, f"{tier}_fraction"))

    def level(self, attained_device_s: float) -> int:
        """Level of attained service: 0 for those that had little."""
        return bisect_right(self.las_thresholds_device_s, attained_device_s + ROUNDING)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, in the order of the fields."""
        values = ((entry.name, getattr(self, entry.name)) for entry in fields(self))
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Parameters:
        """The defaults with `values` over them; as `changed`."""
        return cls().changed(**values)


NAMES: tuple[str, ...] = tuple(entry.name for entry in fields(Parameters))
"""All parameters, in the order in which they are shown."""


def describe(name: str) -> dict[str, Any]:
    """``{"help", "low", "high", "default"}`` of one parameter."""
    entry = next(entry for entry in fields(Parameters) if entry.name == known(name))
    default = list(entry.default) if isinstance(entry.default, tuple) else entry.default
    return {**entry.metadata, "default": default}


def known(name: str) -> str:
    """`name` when there is such a parameter; `NotFound` with the nearest one otherwise."""
    if name in NAMES:
        return name
    raise refuse(
        NotFound,
        because("no_such_parameter", **choices(name, NAMES)),
        parameter=name,
        known=NAMES,
    )


def _taken(name: str, value: object) -> object:
    default = describe(name)["default"]
    if isinstance(default, list) and isinstance(value, list | tuple):
        return tuple(float(v) if _is_number(v) else v for v in value)
    if isinstance(default, float) and _is_number(value):
        return float(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _check(name: str, value: object, metadata: Mapping[str, Any]) -> None:
    low, high = metadata["low"], metadata["high"]
    kind = type(describe(name)["default"])
    if kind is list:
        fits = (
            isinstance(value, tuple)
            and len(value) <= MAX_THRESHOLDS
            and all(_is_number(v) and low <= v <= high for v in value)
            and all(a < b for a, b in pairwise(value))
        )
    else:
        whole = kind is int
        fits = _is_number(value) and low <= value <= high and not (whole and type(value) is float)
    if not fits:
        raise refuse(
            BadRequest,
            because(
                "parameter_out_of_range",
                parameter=name,
                kind={list: "numbers", int: "whole"}.get(kind, "number"),
                most=MAX_THRESHOLDS if kind is list else None,
                low=low,
                high=high,
                given=repr(list(value) if isinstance(value, tuple) else value),
            ),
            parameter=name,
            low=low,
            high=high,
        )


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)
