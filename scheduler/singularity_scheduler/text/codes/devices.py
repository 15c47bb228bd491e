"""Reasons about devices: who gets them, gives them up, waits for them. One function for each code;
its arguments are those of the code."""

from __future__ import annotations

from singularity_scheduler.client.words import duration
from singularity_scheduler.text.phrases import behind, count, goes_on, listed, needed
from singularity_scheduler.text.said import Clauses, Said

NOTHING_LOST = "nothing is lost"
COMES_BACK = "it comes back with the next device call"
JUST_WAITS = "running code just waits"


# -- taken for another session --------------------------------------------------------------


def paused_idle(by: str, tier: str, least: int, most: int) -> Clauses:
    needs = f"{tier} needs {needed(least, most)} and this notebook was idle"
    return (f"paused for {by}: {needs}", NOTHING_LOST, COMES_BACK)


def _paused(by: str, why: str) -> Clauses:
    return (f"paused for {by}{why}", NOTHING_LOST, f"{COMES_BACK} and {JUST_WAITS}")


def paused_lower(by: str, tier: str, below: str, least: int, most: int) -> Clauses:
    return _paused(by, f": {tier} goes before {below} and needs {needed(least, most)}")


def paused_borrower(by: str, cluster: str, lent: str, least: int, most: int) -> Clauses:
    own = f"virtual cluster '{cluster}' needs {needed(least, most)} of its own"
    return _paused(by, f": {own} and '{lent}' had borrowed some")


def paused_for_slice(by: str) -> Clauses:
    return _paused(by, ": it is that one's turn on the device that both share")


def paused_for_turn(by: str, both: str) -> Clauses:
    return _paused(by, f": it is that one's turn, which has been served less ({both} both)")


def paused_for_long_wait(by: str, both: str) -> Clauses:
    return _paused(by, f", which has waited for longer than anybody should ({both} both)")


def paused_for_guarantee(by: str, promised_to: str) -> Clauses:
    return _paused(by, f", which would not get what {promised_to} promises in this window")


# -- taken by a person, or by the scheduler itself ------------------------------------------


def parked_idle(quiet_s: float, limit_s: float) -> Clauses:
    quiet = f"no call reached its devices for {duration(quiet_s)} (idle_soft_s is {limit_s:g})"
    return (f"parked by itself: {quiet}", NOTHING_LOST, COMES_BACK)


def parked_by(by: str) -> Clauses:
    return (f"parked by {by}: {NOTHING_LOST}", COMES_BACK)


def preempted(by: str) -> Clauses:
    return (f"preempted by {by}: {NOTHING_LOST}", f"{JUST_WAITS} until the session is resumed")


def held_back(by: str) -> str:
    return f"held back by {by}: it starts after it is resumed"


def moved_off(device: str, why: Said | str, by: str | None) -> Clauses:
    who = f" by {by}" if by else ""
    return (
        f"leaves {device}, which was drained{who} ({why})",
        f"{NOTHING_LOST}, it comes back on another device",
    )


def lapsed() -> Clauses:
    return ("parked because its lease was not renewed in time", NOTHING_LOST, COMES_BACK)


def set_down(why: str) -> Clauses:
    return (
        f"parked because its device proxy ended and no other one got ready ({why})",
        f"its device state is on file, {NOTHING_LOST}",
        "another one is tried with the next device call",
    )


def parked_while_away() -> Clauses:
    return ("its node agent parked it while the scheduler was away", NOTHING_LOST, COMES_BACK)


def reclaimed() -> Clauses:
    return ("its devices are taken back in order after its node was away", NOTHING_LOST)


def park_failed(sentence: str) -> str:
    return f"could not be parked, so it keeps its devices ({sentence})"


# -- kept alive, another tier ---------------------------------------------------------------


def kept(by: str, for_s: float) -> Clauses:
    return (
        f"kept alive by {by} for {duration(for_s)}: it is not parked for being idle",
        "a higher tier still goes first",
    )


def _not_kept(why: str) -> str:
    return f"no longer kept alive, because {why}: its devices count as idle when nothing uses them"


def keep_ended(by: str) -> str:
    return _not_kept(f"{by} ended it")


def keep_over() -> str:
    return _not_kept("its time is over")


def changed(by: str, tiers: tuple[str, ...], priorities: tuple[str, ...]) -> str:
    """`tiers` and `priorities`: (before, after), () where nothing changed."""
    both = (("tier", tiers), ("priority", priorities))
    what = [f"{name} from {ends[0]} to {ends[1]}" for name, ends in both if ends]
    return f"{by} changed its {' and its '.join(what)}: nothing else of it changed"


# -- waiting and getting --------------------------------------------------------------------


def moving(by: str, devices: tuple[str, ...]) -> Clauses:
    return (f"moving to {listed(devices)} for {by}: {NOTHING_LOST}", JUST_WAITS)


def waits(asked_by: str | None, least: int, most: int) -> str:
    who = f"{asked_by} asked for its devices" if asked_by else "its code called a device"
    return f"{who}: it waits for {needed(least, most)}"


def waits_for_quota(least: int, most: int, why: Said) -> str:
    return f"waits for {needed(least, most)}: {why.text}"


def granted(devices: tuple[str, ...], virtual: int, saved: bool) -> str:
    return f"{'comes back on' if saved else 'gets'} {behind(devices, virtual)}"


def held(devices: tuple[str, ...], virtual: int, saved: bool) -> str:
    where = behind(devices, virtual)
    return f"came back on {where}: everything as before" if saved else f"holds {where}"


def withdrawn(saved: bool) -> Clauses:
    rest = "its state is kept" if saved else "it holds no device state"
    return ("no longer needs a device, so it left the queue", rest)


def attach_failed(sentence: str, saved: bool) -> Clauses:
    rest = "its saved state is kept and" if saved else "nothing was lost and"
    return (
        f"no device could be attached ({sentence})",
        f"{rest} the next device call tries again",
    )


# -- more or fewer --------------------------------------------------------------------------


def shrunk(
    virtual: int, physical: int, waiter: str, waiter_tier: str, least: int, most: int
) -> Clauses:
    return (
        f"{goes_on(virtual, physical)}: {waiter} ({waiter_tier}) needs {needed(least, most)}",
        NOTHING_LOST,
        "it grows back when devices are free",
    )


def grown(virtual: int, physical: int) -> Clauses:
    return (f"{goes_on(virtual, physical)}: devices are free", NOTHING_LOST, JUST_WAITS)


def resizing(by: str, virtual: int, physical: int) -> Clauses:
    return (f"{goes_on(virtual, physical)} for {by}: {NOTHING_LOST}", JUST_WAITS)


def resized(devices: tuple[str, ...], virtual: int) -> str:
    return f"goes on with {behind(devices, virtual)}: everything as before"


def resize_failed(devices: tuple[str, ...], virtual: int, sentence: str) -> str:
    return f"goes on with {behind(devices, virtual)}, which could not be changed ({sentence})"


def wished_more(by: str, wanted: int, has: int) -> str:
    return f"{by} asked for {count(wanted)}: it has {has} and gets the others when they are free"


def wished_later(by: str, wanted: int) -> str:
    return f"{by} asked for {count(wanted)}: it gets at most so many with its next devices"


def has_already(by: str, has: int) -> str:
    return f"{by} asked for {count(has)}, which it has: it gets no others"


# -- its device proxy -----------------------------------------------------------------------


def recovered(records: int, ms: float, why: str) -> str:
    cause = f"because it {why}" if why else "after a crash"
    return (
        f"its device proxy was replaced {cause}: nothing is lost "
        f"({count(records, 'record')} done again in {ms:.0f} ms)"
    )


def gave_up(operation: str, deaths: int) -> Clauses:
    return (
        f"{operation} ended its device proxy {deaths} times, so that call failed with an error",
        "everything else was kept: avoid that operation",
    )


def silent(limit_s: float) -> Clauses:
    then = f"it is replaced when that lasts for {limit_s:g} s" if limit_s else "the session waits"
    return (f"its device proxy does not answer: {then}", NOTHING_LOST)


def working(operation: str, seconds: float) -> Clauses:
    return (
        f"its device has worked on one operation ({operation}) for {duration(seconds)}",
        "interrupt the kernel to stop waiting for it",
    )


def squashing_off(why: str) -> str:
    return f"its ranks share nothing on a device any more: {why}"


# -- with the other parts of a gang ---------------------------------------------------------


def part_paused(part: int, of: Said) -> Clauses:
    first, *rest = of.clauses
    return (f"part {part} of its gang was paused: {first}", *rest)
