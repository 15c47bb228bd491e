"""When something is expected, on what that is based, and what is planned. One function for each
code; its arguments are those of the code."""

from __future__ import annotations

from singularity_scheduler.client.words import duration
from singularity_scheduler.text.phrases import count, duty, short, span
from singularity_scheduler.text.said import Said

# -- when -----------------------------------------------------------------------------------


def cannot_be_said(why: Said) -> str:
    return f"it cannot be said when: {why}"


def expected(low_s: float, high_s: float, why: Said, after: Said | None) -> str:
    """`after`: what has to happen first, from when on the seconds count."""
    when = span(low_s, high_s)
    when = f"{when} after {after}" if after is not None else f"in {when}"
    return f"expected {when}, as {why}"


# -- what has to happen first ---------------------------------------------------------------


def is_parked() -> str:
    return "it is parked"


def next_device_call() -> str:
    return "its next device call"


def is_asked_for() -> str:
    return "it is asked for"


# -- what is certain ------------------------------------------------------------------------

_STEPS = {
    "launch": "a start",
    "attach": "an attach",
    "park": "a park",
    "suspend": "a suspend",
    "resume": "a resume",
}


def step_not_measured(step: str, node: str) -> str:
    return f"{_STEPS[step]} was not measured on node {node} yet"


def step_takes(step: str, usual_s: float, node: str, samples: int) -> str:
    about = short(usual_s) if usual_s < 1 else f"about {short(usual_s)}"
    return f"{_STEPS[step]} takes {about} on node {node} ({samples} measured)"


def when_there_is_room(why: Said) -> str:
    return f"{why}, when a node has room"


def devices_are_free() -> str:
    return "devices are free"


def devices_are_freed(holder: str, why: Said) -> str:
    return f"the devices of {holder} are being freed and {why}"


def holder_is_idle(holder: str, keeps: Said) -> str:
    """`keeps`: what lets it keep its devices until then."""
    return f"{holder} is idle and others may take its devices after {keeps}, if it stays idle"


def idle_gives_up(holder: str) -> str:
    return f"{holder} is idle and gives its devices up at once"


def had_them_for(limit_s: float) -> str:
    return f"it had them for {duration(limit_s)} (min_run_s)"


def another_try(after_s: float) -> str:
    return f"another try, {duration(after_s)} after a park of it failed"


def grace(limit_s: float) -> str:
    return f"{duration(limit_s)} (idle_grace_s)"


def turn_ends(holder: str) -> str:
    return f"{holder} was served more and its turn ends then (quantum_s)"


def gives_them_up(holder: str, rule: str) -> str:
    return f"{holder} has to give its devices up then (rule {rule})"


# -- why nobody can say ---------------------------------------------------------------------


def waits_for_somebody(by: str) -> str:
    return f"it waits until somebody resumes it, and {by} preempted it"


def devices_go_to_nobody(node: str, state: str, by: str | None, why: Said | str) -> str:
    return f"node {node} {duty(state, by, why)}, so its devices go to nobody"


def no_other_takes_it(node: str, state: str, by: str | None, why: Said | str) -> str:
    return f"node {node} {duty(state, by, why)}, and no other node can take it"


def has_too_few(node: str, number: int) -> str:
    return f"node {node} has {f'only {count(number)}' if number else 'no device'} now"


def no_node_takes_it() -> str:
    return "no node can take it as things are"


# -- by experience --------------------------------------------------------------------------


def _waits(wait: str, tier: str, needs: int) -> str:
    return {
        "start": f"waits of {tier} runs for a start with {count(needs)}",
        "devices": f"waits of {tier} sessions for {count(needs)}",
        "return": f"waits of {tier} sessions with {count(needs)} to come back from the store",
    }[wait]


def few_waits(wait: str, tier: str, needs: int, samples: int) -> str:
    kind = _waits(wait, tier, needs)
    if samples == 1:
        return f"only 1 of the {kind} was measured yet"
    return f"{f'only {samples}' if samples else 'no'} {kind} were measured yet"


def waited_longer(
    wait: str, tier: str, needs: int, samples: int, waited_s: float, longest_s: float
) -> str:
    last = f"{samples} last {_waits(wait, tier, needs)}"
    return (
        f"it has waited for {short(waited_s)}, longer than the {last} (at most {short(longest_s)})"
    )


def last_waits(wait: str, tier: str, needs: int, samples: int, low_s: float, high_s: float) -> str:
    return f"the {samples} last {_waits(wait, tier, needs)} were {span(low_s, high_s)}"


def longer_waits(
    wait: str,
    tier: str,
    needs: int,
    samples: int,
    waited_s: float,
    longer: int,
    low_s: float,
    high_s: float,
) -> str:
    """`longer`: how many of the last `samples` were longer than it has waited."""
    last = f"{samples} last {_waits(wait, tier, needs)}"
    return (
        f"of the {last} those that were longer than {short(waited_s)} ({longer}) were "
        f"{span(low_s, high_s)}"
    )


# -- what is planned ------------------------------------------------------------------------


def idle_is_freed(limit_s: float) -> str:
    limit = duration(limit_s)
    return f"no call reaches its devices, and idle ones are freed after {limit} (idle_soft_s)"


def cannot_be_stored(why: Said, trouble: Said | str) -> str:
    return f"{why}, and it cannot be stored ({trouble})"
