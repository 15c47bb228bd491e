"""The pages that change something. What changes a node or a session asks first, then says what the
scheduler said; taking the end of a session back needs no question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from singularity_proxy.errors import BadRequest, NotFound, SingularityError

from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values.administration import DutyEvent
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.text.reasons import render

from .page import Page
from .queue_rows import END, SESSION_ASKS
from .views import node_values

MAX_REASON = 500
MAX_MINUTES = 30 * 1440
END_GRACE_S = 5.0
"""Between the request to end and the kill, for a session that is ended here."""


@dataclass(frozen=True)
class Ask:
    """What a page asks before it does something; `{node}` is the node."""

    event: DutyEvent
    title: str
    what: str
    button: str


ASKS = {
    "cordon": Ask(
        DutyEvent.CORDON,
        "Cordon {node}?",
        "No new session is placed on it. What is there goes on.",
        "Cordon",
    ),
    "uncordon": Ask(
        DutyEvent.UNCORDON,
        "Open {node} again?",
        "Sessions are placed on it again.",
        "Uncordon",
    ),
    "drain": Ask(
        DutyEvent.DRAIN,
        "Drain {node}?",
        "Its sessions go on elsewhere, or wait in the store until there is room; running code just "
        "waits and nothing is lost. What cannot be stored is parked and stays.",
        "Drain",
    ),
    "undrain": Ask(
        DutyEvent.UNDRAIN,
        "Use {node} again?",
        "The drain is called off, and sessions are placed on it again.",
        "Use it again",
    ),
}


@dataclass(frozen=True)
class Filled:
    """What somebody has filled in."""

    reason: str = ""
    minutes: str = ""
    store: bool = False
    force: bool = False


class ChangeNode(Page):
    """GET asks, POST does it. A refusal is shown with what was filled in."""

    admins_only = True

    def get(self, name: str, verb: str) -> None:
        self._ask(name, verb, Filled())

    async def post(self, name: str, verb: str) -> None:
        ask = _known(verb)
        if name not in self.controller.state.nodes:
            raise NotFound(f"there is no node {name}", node=name)
        filled = Filled(
            self.get_body_argument("reason", "").strip(),
            self.get_body_argument("minutes", "").strip(),
            bool(self.get_body_argument("store", "")),
            bool(self.get_body_argument("force", "")),
        )
        try:
            more = self._drain(filled) if ask.event is DutyEvent.DRAIN else {}
            reason = _reason(filled.reason)
            event = adm.DutyAsked(self.caller.name, name, ask.event, reason, **more)
            await self.controller.submit(event)
        except SingularityError as error:
            self.set_status(error.http_status)
            self._ask(name, verb, filled, error.message)
            return
        self.redirect(self.node_link(name), status=303)

    def _drain(self, filled: Filled) -> dict[str, Any]:
        deadline = None
        if minutes := filled.minutes:
            fits = minutes.isascii() and minutes.isdecimal() and len(minutes) < 6
            if not fits or not 0 < int(minutes) <= MAX_MINUTES:
                raise BadRequest(
                    f"the time for the drain must be a whole number of minutes up to {MAX_MINUTES},"
                    " or be left empty; nothing was changed"
                )
            deadline = self.controller.now() + 60.0 * int(minutes)
        return {"deadline": deadline, "force": filled.force, "store": filled.store}

    def _ask(self, name: str, verb: str, filled: Filled, refused: str = "") -> None:
        ask = _known(verb)
        self.show(
            "ask.html",
            **node_values(self, name),
            ask=ask,
            verb=verb,
            title=ask.title.format(node=name),
            filled=filled,
            refused=refused,
        )


class ChangeSession(Page):
    """GET asks, POST does it: with sessions of one's own, an administrator's with anybody's."""

    async def get(self, session: str, verb: str) -> None:
        self._ask(await self._find(session, verb), verb)

    async def post(self, session: str, verb: str) -> None:
        view = await self._find(session, verb)
        desk, who = self.controller.desk, self.caller.name
        try:
            if verb == END:
                await desk.end(view, who, "ended in the dashboard", END_GRACE_S)
            else:
                await desk.act(view, verb, {}, who)
        except SingularityError as error:
            self.set_status(error.http_status)
            self._ask(await self.controller.find(view.id), verb, error.message)
            return
        self.redirect(self.link("log", session=view.id), status=303)

    async def _find(self, session: str, verb: str) -> SessionView:
        if verb not in SESSION_ASKS:
            there = ", ".join(SESSION_ASKS)
            raise NotFound(f"a session cannot be asked to '{verb}' here: there are {there}")
        return await find_seen(self, session)

    def _ask(self, view: SessionView, verb: str, refused: str = "") -> None:
        self.show(
            "ask_session.html",
            view=view,
            button=SESSION_ASKS[verb],
            reason=render(view.why),
            refused=refused,
        )


async def find_seen(page: Page, session: str) -> SessionView:
    """Return a session that the caller of a page may see; those of others count as not there."""
    view = await page.controller.find(session)
    if page.caller.sees not in (None, view.user):
        raise NotFound(f"there is no session {session}", session=session)
    return view


class Reopen(Page):
    """POST takes the end of a session back; what cannot be taken back is said."""

    async def post(self, session: str) -> None:
        view = await find_seen(self, session)
        await self.controller.desk.reopen(view, self.caller.name)
        self.redirect(self.link("sessions"), status=303)


def _known(verb: str) -> Ask:
    if verb not in ASKS:
        raise NotFound(f"a node cannot be asked to '{verb}': there are {', '.join(ASKS)}")
    return ASKS[verb]


def _reason(text: str) -> str:
    if len(text) > MAX_REASON or not text.isprintable():
        raise BadRequest(
            f"the reason must be one line of at most {MAX_REASON} characters; nothing was changed"
        )
    return text
