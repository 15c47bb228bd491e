"""What JupyterLab has of a verb: its words, where it stands, and when it is offered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Offered(Enum):
    """When a verb makes sense; `ui_labext/src/model/words/verbs.ts` has the test of each."""

    LIVE = "live"
    WITH_DEVICES = "withDevices"
    LIVE_OR_SUSPENDED = "liveOrSuspended"
    RESIZABLE = "resizable"
    RESUMABLE = "resumable"
    RETURNABLE = "returnable"
    FORKABLE = "forkable"
    NOT_ENDED = "notEnded"
    REOPENABLE = "reopenable"


@dataclass(frozen=True)
class Button:
    """A verb as people see it in JupyterLab."""

    label: str
    caption: str
    """What it does, in a sentence."""
    offered: Offered
    place: int
    """In menus; the smallest number comes first."""
    on_card: bool = False
    """It has a button on the session's card; the others are in its menu."""
    command: str = ""
    """The words for a command, where they are not the label and "session"."""
    asks: bool = False
    """The page asks something before it is done; one with `ask` does, too."""
    new_section: bool = False
    """Menus have a line above it."""
    ask: str = ""
    """What a person is asked for when the argument that is needed was not given; "": the page has
    a question of its own, or there is nothing to ask."""


CANCEL = Button(
    "End session",
    "End it; its variables are lost, but for its newest checkpoint",
    Offered.NOT_ENDED,
    place=1000,
    command="End session",
    asks=True,
    new_section=True,
)
"""Of `cancel`, which is no verb of the API: it deletes the session."""
