"""The spawn form as plain, accessible HTML: one fieldset of tiers, one number field.

No script and no style sheet of its own: it works in the Hub's page with any theme, with a screen
reader and from the keyboard. The Hub adds the surrounding form and the button.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from html import escape
from typing import Any

from .options import TIER_NAMES, TIERS, ServerOptions


@dataclass(frozen=True)
class ClusterView:
    """What the form says about the cluster: all devices, those free now, waiting sessions."""

    devices: int
    free: int
    waiting: int = 0
    kinds: tuple[str, ...] = ()
    """Device types in the cluster, such as ("cpu",)."""
    largest: int = 0
    """Most that one notebook can see: the devices of the node with most of them, but of all nodes
    where notebooks are elastic. 0: nobody knows."""

    def sentence(self) -> str:
        kind = " and ".join(self.kinds) if self.kinds else "accelerator"
        noun = "device" if self.devices == 1 else "devices"
        text = f"{self.free} of {self.devices} {kind} {noun} free now"
        if self.waiting:
            text += f", {self.waiting} notebook{'s' if self.waiting != 1 else ''} waiting"
        return text + "."


def render(
    chosen: ServerOptions,
    *,
    cluster: ClusterView | None,
    max_devices: int,
    allowed_tiers: Collection[str] = TIER_NAMES,
    waits: str = "",
) -> str:
    """The form's HTML with `chosen` preselected; `cluster` is None while the service is away.
    `waits`: a sentence about notebooks that the server will have again; "": there are none."""
    limit = min(max_devices, cluster.largest) if cluster and cluster.largest else max_devices
    rows = []
    for tier in TIERS:
        if tier.name not in allowed_tiers:
            continue
        ident = f"singularity-tier-{tier.name}"
        checked = " checked" if tier.name == chosen.tier else ""
        rows.append(
            f'<div class="form-check mb-2">'
            f'<input class="form-check-input" type="radio" name="tier" id="{ident}" '
            f'value="{tier.name}" aria-describedby="{ident}-help" required{checked}> '
            f'<label class="form-check-label" for="{ident}"><strong>{escape(tier.title)}</strong>'
            f"</label>"
            f'<div class="form-text" id="{ident}-help">{escape(tier.meaning)}</div></div>'
        )
    if cluster is None:
        now = "The scheduler service does not answer just now, so free devices are not known."
    else:
        now = cluster.sentence()
    devices = min(chosen.devices, limit)
    return (
        (f'<p id="singularity-waits">{escape(waits)}</p>' if waits else "")
        + '<fieldset class="mb-3"><legend class="fs-5">Service level</legend>'
        + "".join(rows)
        + "</fieldset>"
        '<div class="mb-3">'
        '<label class="form-label" for="singularity-devices">Devices</label> '
        '<input class="form-control" type="number" name="devices" id="singularity-devices" '
        f'min="1" max="{limit}" step="1" value="{devices}" required '
        'aria-describedby="singularity-devices-help singularity-free">'
        '<div class="form-text" id="singularity-devices-help">How many devices a notebook sees, '
        f"1 to {limit}. A device is taken at the first device call and given back when the "
        "notebook is idle and somebody else needs it; variables and tensors stay.</div>"
        f'<div class="form-text" id="singularity-free" role="status">{escape(now)}</div>'
        "</div>"
    )


def cluster_view(cluster: dict[str, Any], elastic: bool = False) -> ClusterView:
    """The service's ``GET cluster`` answer as the form and the progress page show it; `elastic`:
    notebooks have a scale policy, so they may see more devices than they get."""
    devices = cluster.get("devices") or []
    nodes = Counter(device.get("node") for device in devices)
    return ClusterView(
        devices=len(devices),
        free=sum(1 for device in devices if not device.get("session")),
        waiting=sum((cluster.get("waiting") or {}).values()),
        kinds=tuple(sorted({str(device.get("type") or "") for device in devices} - {""})),
        largest=len(devices) if elastic else max(nodes.values(), default=0),
    )
