"""Reasons why a device or a node is not used: what is wrong with it, what becomes of it. One
function for each code; its arguments are those of the code."""

from __future__ import annotations

from singularity_scheduler.client.words import duration
from singularity_scheduler.text.phrases import count

XIDS: dict[int, str] = {
    46: "the GPU stopped processing",
    48: "a double-bit memory error that could not be corrected",
    62: "the GPU's power controller halted",
    64: "a faulty memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error",
    109: "the GPU did not switch contexts in time",
    110: "a security fault of the GPU",
    119: "the GPU's system processor did not answer in time",
    120: "an error of the GPU's system processor",
    136: "an NVLink could not be trained",
    140: "a memory error that was not recovered from",
    143: "the GPU could not be initialised",
    156: "a part of the GPU was retired until its next reset",
    158: "the GPU did not answer in time",
}
"""Xid codes that drain a device (`core.health.FATAL_XIDS`): what NVIDIA's Xid catalog says of them
(https://docs.nvidia.com/deploy/xid-errors/)."""

# -- devices --------------------------------------------------------------------------------


def device_lost() -> str:
    return "the driver no longer reaches it (fallen off the bus)"


def xid(number: int) -> str:
    """`number`: one of `XIDS`, or another one that drains a device in another version."""
    what = XIDS.get(number)
    return f"Xid {number}: {what}" if what is not None else f"Xid {number}"


def memory_errors(number: int) -> str:
    return f"{count(number, 'memory error')} that could not be corrected (ECC)"


def row_not_remapped() -> str:
    return "a faulty memory row could not be remapped"


def driver_silent(silent_s: float) -> str:
    return f"the driver has not answered for {duration(silent_s)}"


def too_hot(temperature_c: float | None) -> str:
    hot = f"{temperature_c:.0f} °C" if temperature_c is not None else "too hot"
    return f"too hot for more than a minute ({hot})"


def maintenance() -> str:
    return "maintenance"


# -- nodes ----------------------------------------------------------------------------------


def machine_goes() -> str:
    return "its machine is taken back"


def machine_is_back() -> str:
    return "its machine is back"


def upgrade(why: str) -> str:
    """`why`: what whoever began it said."""
    return f"upgrade: {why}" if why else "upgrade"


def upgrade_was_cancelled() -> str:
    return "the upgrade was cancelled"


def is_upgraded() -> str:
    return "it is upgraded"


def back_with_version(version: str) -> str:
    return f"it is back with version {version}"


def opened_too_early(node: str) -> str:
    return f"node {node} was opened before it was empty"


def _stopped(node: str) -> str:
    return f"stopped before node {node}, of which nothing was touched"


def stopped_before_unstorable(node: str, trouble: str) -> str:
    return f"{_stopped(node)}: its sessions cannot be stored ({trouble}); end them first"


def stopped_before_full(node: str, needs: int, who: str) -> str:
    what = f" with {count(needs, 'free device')}" if needs else ""
    return (
        f"{_stopped(node)}: there is no other open node{what} for {who}; add a node or make room, "
        "or let sessions wait in the store (wait)"
    )
