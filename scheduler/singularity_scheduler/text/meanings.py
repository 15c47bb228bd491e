"""What words of the scheduler mean, in one line each. Pure."""

from __future__ import annotations

DUTIES: dict[str, str] = {
    "open": "sessions are placed there",
    "cordoned": "nothing new is placed there; what is there goes on",
    "draining": "nothing is placed there, and what is there leaves",
    "drained": "nothing of any session is left there: it can be switched off",
}
"""What a node is used for (`core.administration.NodeDuty`)."""

PRECEDENCE: dict[str, str] = {
    "held": "not held back",
    "crowd": "among the {looked_at} that are looked at first",
    "tier": "a higher tier",
    "quota": "within the quota of its virtual cluster",
    "guarantee": "would get less than its tier promises",
    "starves": "has waited for very long",
    "notebook": "a notebook, somebody sits before it",
    "turns": "shares its device, by turns",
    "service": "has been served less",
    "priority": "a higher priority",
    "first": "came first",
    "group": "a group has one place in the queue",
}
"""Rule of `explain.precedence` -> why a session goes before another one."""
