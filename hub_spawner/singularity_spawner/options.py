"""What a person may choose when a notebook server starts: the SLA tier and the number of devices.

Pure: no Hub, no I/O. `mixin` calls `from_form` for the submitted form and `parse` for everything
(form, query string, REST), because a Hub's `user_options` are untrusted whatever way they came.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

MAX_DEVICES = 1024
"""No cluster of ours gives one session more; the real limit is asked of the scheduler service."""


@dataclass(frozen=True)
class Tier:
    """One SLA tier as shown in the form. `name` is the word used in the API."""

    name: str
    title: str
    meaning: str


TIERS: tuple[Tier, ...] = (
    Tier(
        "premium",
        "Premium",
        "Served first. Paused only while it is idle. Aims at 95 % or more of the device time "
        "it asks for, in every hour.",
    ),
    Tier(
        "standard",
        "Standard",
        "Served after premium. May be paused in the middle of a cell for a premium notebook, and "
        "goes on by itself. Aims at 70 % or more.",
    ),
    Tier(
        "basic",
        "Basic",
        "Uses devices nobody else needs. The first to be paused, and goes on by itself. "
        "No promise about time.",
    ),
)
TIER_NAMES: tuple[str, ...] = tuple(tier.name for tier in TIERS)


class OptionsError(ValueError):
    """A choice that cannot be served. `str()` is one sentence for people, `option` the field."""

    def __init__(self, sentence: str, option: str) -> None:
        super().__init__(sentence)
        self.option = option


@dataclass(frozen=True)
class ServerOptions:
    """A valid choice: `tier` is one of `TIER_NAMES`, `devices` (virtual devices) is >= 1."""

    tier: str
    devices: int

    def to_json(self) -> dict[str, Any]:
        return {"tier": self.tier, "devices": self.devices}


def from_form(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The Hub's form data (a list of strings per field) as the options that REST callers send.

    Turns nothing down by itself: single values leave their list, a whole number becomes an int,
    and everything else stays what it was for `parse` to judge.
    """
    options: dict[str, Any] = {}
    for key, values in fields.items():
        value = values[0] if isinstance(values, list) and len(values) == 1 else values
        if key == "devices" and isinstance(value, str):
            text = value.strip()
            digits = text[1:] if text[:1] in ("-", "+") else text
            value = int(text) if digits.isascii() and digits.isdigit() else text
        elif key == "tier" and isinstance(value, str):
            value = value.strip()
        options[key] = value
    return options


def parse(
    raw: object,
    *,
    default: ServerOptions,
    allowed_tiers: Collection[str] = TIER_NAMES,
    max_devices: int = MAX_DEVICES,
    extra_keys: Collection[str] = (),
) -> ServerOptions:
    """Check `raw` and return the choice; missing keys take their value from `default`.

    `allowed_tiers` and `max_devices` are the deployment's limits, `extra_keys` names of options
    that somebody else handles. Raises `OptionsError` with one sentence.
    """
    if not isinstance(raw, Mapping):
        raise OptionsError(
            "The server options must be an object such as "
            '{"tier": "standard", "devices": 1}; nothing was started.',
            "options",
        )
    known = {"tier", "devices", *extra_keys}
    unknown = [_shown(key) for key in raw if key not in known]
    if unknown:
        raise OptionsError(
            f"Unknown server option {', '.join(sorted(unknown)[:5])}: the options are 'tier' and "
            "'devices'; nothing was started.",
            "options",
        )
    tier = raw.get("tier", default.tier)
    if not isinstance(tier, str) or tier not in allowed_tiers:
        raise OptionsError(
            f"Unknown tier {_shown(tier)}: choose {_either(allowed_tiers)}; nothing was started.",
            "tier",
        )
    devices = raw.get("devices", default.devices)
    if isinstance(devices, bool) or not isinstance(devices, int):
        raise OptionsError(
            f"The number of devices must be a whole number, not {_shown(devices)}; "
            "nothing was started.",
            "devices",
        )
    if devices < 1:
        raise OptionsError(
            f"A notebook needs at least 1 device, not {_shown(devices)}: a cell that uses only "
            "the CPU never holds one; nothing was started.",
            "devices",
        )
    if devices > max_devices:
        raise OptionsError(
            f"{_shown(devices)} devices are more than the {max_devices} that one server may ask "
            "for here; choose fewer, nothing was started.",
            "devices",
        )
    return ServerOptions(tier, devices)


def check_capacity(options: ServerOptions, cluster_devices: int) -> None:
    """Raise `OptionsError` when `options` asks for more than the whole cluster has."""
    if options.devices > cluster_devices:
        have = "1 device" if cluster_devices == 1 else f"{cluster_devices} devices"
        raise OptionsError(
            f"{options.devices} devices were asked for, but this cluster has {have} in all; "
            "choose fewer, nothing was started.",
            "devices",
        )


def _shown(value: object) -> str:
    """`value` as it may stand in a sentence: quoted, short, printable."""
    text = (
        repr(value) if not isinstance(value, int) or value.bit_length() < 128 else "a huge number"
    )
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 40 else text[:37] + "..."


def _either(names: Collection[str]) -> str:
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} or {listed[-1]}"
