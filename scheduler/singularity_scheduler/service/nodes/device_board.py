"""What the devices of each session do now, as its agent says every few seconds. Never stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.service.schemas.documents import iso

Json = dict[str, Any]

PERCENT = 2.0
"""Listeners are not told of a smaller change of the utilisation, in points of per cent."""
PART = 0.005
"""Nor of a smaller one of the memory used, as a part of what the device has."""


class DeviceBoard:
    """Keeps the newest report of each session that holds devices."""

    def __init__(self, state: ClusterState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._now: dict[str, Json] = {}
        self._told: dict[str, Json] = {}
        """What listeners were told last."""
        self.on_change: Callable[[SessionView, Json], None] = lambda view, document: None
        """Told what listeners are to hear; must neither block nor fail."""

    def document(self, view: SessionView) -> Json:
        """Its devices with their newest figures; those that nobody has reported yet are null."""
        known = self._now.get(view.id)
        if known is not None:
            return known
        return self._document(view, None, {})

    def seen(self, node: str, reports: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
        """A node's report: session -> its virtual devices."""
        for session, devices in reports.items():
            view = self._state.sessions.get(session)
            if view is None or view.node != node or not view.devices:
                continue
            figures = {int(d["virtual_device"]): d for d in devices}
            document = self._now[session] = self._document(view, self._clock(), figures)
            before = self._told.get(session)
            if before is None or differs(before, document):
                self._tell(view, document)

    def __call__(self, decision: Decision) -> None:
        """Observes decisions: whoever has other devices, or none any more, has no figures."""
        for view in decision.sessions:
            told = self._told.get(view.id)
            if told is not None and [d["device"] for d in told["devices"]] != list(view.devices):
                self._now.pop(view.id, None)
                self._tell(view, self._document(view, self._clock(), {}))
                if not view.devices:
                    del self._told[view.id]

    def _tell(self, view: SessionView, document: Json) -> None:
        self._told[view.id] = document
        self.on_change(view, document)

    def _document(
        self, view: SessionView, at: float | None, figures: Mapping[int, Mapping[str, Any]]
    ) -> Json:
        node = self._state.nodes.get(view.node)
        found = []
        for number, device in enumerate(view.devices):
            known = node.devices.get(device) if node else None
            one = figures.get(number) or {}
            one = one if one.get("device") == device else {}
            found.append(
                {
                    "virtual_device": number,
                    "device": device,
                    "name": known.name if known else "",
                    "memory_used_bytes": one.get("memory_used_bytes"),
                    "memory_total_bytes": known.capacity_bytes if known else None,
                    "utilisation_percent": one.get("utilisation_percent"),
                    "squashing": one.get("squashing"),
                }
            )
        return {"session": view.id, "node": view.node, "at": iso(at), "devices": found}


def differs(before: Json, after: Json) -> bool:
    """Whether somebody who looks at both would see a difference."""
    old, new = before["devices"], after["devices"]
    return len(old) != len(new) or any(map(_differs, old, new))


def _differs(old: Json, new: Json) -> bool:
    least = {
        "memory_used_bytes": PART * (new["memory_total_bytes"] or 0),
        "utilisation_percent": PERCENT,
    }
    if old["device"] != new["device"] or _state(old) != _state(new):
        return True
    for key, smallest in least.items():
        first, second = old[key], new[key]
        if (first is None) is not (second is None):
            return True
        if first is not None and abs(second - first) >= max(smallest, 1e-9):
            return True
    return False


def _state(one: Json) -> str:
    """Of squashing; a number of steps alone is no news."""
    return str((one.get("squashing") or {}).get("state", ""))
