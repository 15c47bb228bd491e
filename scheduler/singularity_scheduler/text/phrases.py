"""Pieces of sentences: counts, lists, devices, checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, noun: str = "device") -> str:
    """Return "1 device", "2 devices"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Return "cpu:0 and cpu:1"."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def needed(least: int, most: int) -> str:
    """Return how many devices are enough: "2 devices", "1 to 4 devices"."""
    return count(most) if least == most else f"{least} to {count(most)}"


def behind(devices: Sequence[str], virtual: int) -> str:
    """Return the physical devices, and how many virtual ones they serve where those are more."""
    each = tuple(dict.fromkeys(devices))
    where = listed(each)
    if len(each) == virtual:
        return where
    return f"{where}, with {virtual} virtual devices on {len(each)} physical"


def goes_on(virtual: int, physical: int) -> str:
    """Return on how many physical devices a session runs its virtual ones."""
    return f"runs its {virtual} virtual devices on {physical} physical"


def attempt(number: int, of: int) -> str:
    """Return which attempt of a run this is, in brackets; "" for the first."""
    return "" if number == 1 else f" (attempt {number} of {of})"


def duty(state: str, by: str | None, why: str) -> str:
    """Return what a node is used for: "is being drained by root (new kernel)"."""
    words = {"open": "is open", "draining": "is being drained", "drained": "is drained"}
    who = f" by {by}" if by else ""
    return f"{words.get(state, f'is {state}')}{who}{f' ({why})' if why else ''}"


def part(number: int) -> str:
    """Return how the parts of a gang are named to one another."""
    return f"part {number} of its gang"
