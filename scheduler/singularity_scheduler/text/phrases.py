"""Pieces of sentences: counts, lists, devices, checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from singularity_scheduler.client.words import duration, made_at
from singularity_scheduler.core.reasons.refusals import choices

from .said import Said


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


def duty(state: str, by: str | None, why: Said | str) -> str:
    """Return what a node is used for: "is being drained by root (new kernel)"."""
    why = str(why)
    words = {"open": "is open", "draining": "is being drained", "drained": "is drained"}
    who = f" by {by}" if by else ""
    return f"{words.get(state, f'is {state}')}{who}{f' ({why})' if why else ''}"


def part(number: int) -> str:
    """Return how the parts of a gang are named to one another."""
    return f"part {number} of its gang"


def clipped(text: str) -> str:
    """Return what somebody typed in at most 60 characters."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def instead_of(near: str | None, there: Sequence[str]) -> str:
    """Return what to say in place of a word that nobody knows: the nearest one, or all."""
    if near is not None:
        return f"did you mean '{near}'?"
    return f"pick from {', '.join(there) or 'none'}"


def nearest(word: str, names: Iterable[str]) -> str:
    """Return what to say in place of a `word` that is none of `names`."""
    found = choices(word, names)
    return instead_of(found["near"], found["there"])


def stored(name: str) -> str:
    """Return how a sentence names a checkpoint: "checkpoint 'before lr'", and one that has only its
    id in the place of a name by its time: "the checkpoint of 2026-11-25 13:50:16 UTC"."""
    at = made_at(name)
    return f"the checkpoint of {at}" if at else f"checkpoint '{name}'"


def short(seconds: float) -> str:
    """Return a length of time that may be less than a second."""
    if seconds < 1:
        return "less than 1 s"
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def span(low: float, high: float) -> str:
    """Return a range of times, or one of them when they read alike."""
    first, last = short(low), short(high)
    if first == last:
        return first if low < 1 else f"about {first}"
    return f"{first} to {last}"


def holder(device: str, who: str, tier: str, state: str) -> str:
    """Return who has a device, and whether it works: "cpu:0 by ada/train (basic, idle)"."""
    return f"{device} by {who} ({tier}, {state})"


def told_of(who: str, word: str, said: str, more: Sequence[str]) -> str:
    """Return all that is said of a session in the state `word`; `more`: what is said besides."""
    return " ".join([f"{who} is {word}: {said}.", *(f"{one}." for one in more)])


def inside(locations: Sequence[str]) -> str:
    """Return " in west or east"; "" for anywhere."""
    return f" in {' or '.join(locations)}" if locations else ""


def whole(part: int, parts: int) -> str:
    """Return which part of a gang a session is."""
    return f"part {part} of a gang on {parts} nodes"


def figure(value: int | float) -> str:
    """Return a recorded number in a few characters."""
    try:
        return f"{value:g}"
    except OverflowError:  # an integer that no float can hold
        digits = str(abs(value))
        return f"{'-' if value < 0 else ''}{digits[0]}e+{len(digits) - 1}"
