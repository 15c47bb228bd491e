"""The templates, and how numbers and times are written in them."""

from __future__ import annotations

from datetime import datetime, timezone

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from singularity_scheduler.client.words import duration

from .cluster_map import ONLY_WORDS, Doing, Only, Use
from .series import TIERS


def environment() -> Environment:
    """Whatever a person could have written (names, reasons) is escaped; what is missing is an
    error."""
    made = Environment(
        loader=PackageLoader(__package__ or ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "moment": moment,
        "clock": clock,
        "duration": duration,
        "count": count,
        "hours": hours,
    }
    made.globals |= {
        "Use": Use,
        "Doing": Doing,
        "Only": Only,
        "only_words": ONLY_WORDS,
        "tiers": TIERS,
    }
    return made


def moment(at: float | None) -> Markup:
    """Date and time in UTC, to the second."""
    return _time(at, "%Y-%m-%d %H:%M:%S")


def clock(at: float | None) -> Markup:
    """Hour and minute in UTC."""
    return _time(at, "%H:%M")


def _time(at: float | None, form: str) -> Markup:
    if at is None:
        return Markup("")
    when = datetime.fromtimestamp(at, timezone.utc)
    machine = when.isoformat(timespec="seconds")
    return Markup('<time datetime="{}">{}</time>').format(machine, when.strftime(form))


def hours(seconds: float) -> str:
    """Seconds as hours with two decimals."""
    return f"{seconds / 3600:,.2f}"


def count(value: float) -> str:
    """At most one decimal, thousands apart."""
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:,.1f}"
