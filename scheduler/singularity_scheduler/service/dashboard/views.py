"""The pages that show something. Each is whole without a script."""

from __future__ import annotations

from typing import Any

from singularity_proxy.errors import BadRequest, NotFound, Unavailable

from singularity_scheduler.core.values.rules import RULES
from singularity_scheduler.service.api import checks
from singularity_scheduler.service.ledger.log_rows import BEGINNING, Filters, Line
from singularity_scheduler.service.operations.administer import clusters_document
from singularity_scheduler.service.operations.administer_nodes import node_document
from singularity_scheduler.service.operations.archive import ACTIVE_WORDS
from singularity_scheduler.service.schemas.documents import device_document
from singularity_scheduler.text.reasons import render, render_duty

from . import charts
from .cluster_map import Only, cluster_map, square
from .page import Page
from .queue_rows import SESSION_ASKS, list_offered, queue, session_row, waiting_by_tier
from .series import TIERS

SESSIONS_PER_PAGE = 50
LINES_PER_PAGE = 100


class Home(Page):
    """Where one begins: the map, for an administrator, else one's own sessions."""

    def get(self) -> None:
        self.redirect(self.link("map" if self.caller.admin else "sessions"))


class ShowMap(Page):
    """The cluster map."""

    admins_only = True

    def get(self) -> None:
        asked = self.get_query_argument("cluster", None)
        only = self.word("only") or Only.ALL.value
        if only not in {each.value for each in Only}:
            raise BadRequest(f"there is no such choice of nodes: {only}")
        state = self.controller.state
        found = cluster_map(state, asked, Only(only), self.number("page"))
        if asked is not None and asked not in {row.name for row in found.clusters}:
            raise NotFound(f"there is no node of a cluster '{asked}'")
        self.show(
            "map.html", map=found, waiting=waiting_by_tier(state), sessions=len(state.sessions)
        )


class ShowNode(Page):
    """One node: its devices, what is there, what it is used for."""

    admins_only = True

    def get(self, name: str) -> None:
        self.show("node.html", **node_values(self, name))


def node_values(page: Page, name: str) -> dict[str, Any]:
    """What the template of a node needs; `NotFound` when there is none of that name."""
    state = page.controller.state
    node = state.nodes.get(name)
    if node is None:
        raise NotFound(f"there is no node {name}", node=name)
    return {
        "node": node_document(state, node, page.controller.now()),
        "devices": [
            (square(state, node, device), device_document(state, name, device, None))
            for device in node.devices
        ],
        "mark": node.duty,
        "used_for": render_duty(node.duty),
        "images": node.abilities.trouble,
        "labels": {v.id: v.label for v in state.sessions.values() if v.node == name},
    }


class ShowSessions(Page):
    """One's own sessions; for administrators, everybody's. What concerns a user is on top."""

    async def get(self) -> None:
        state, now, sees = self.controller.state, self.controller.now(), self.caller.sees
        shown = self.word("show") or "active"
        if shown not in ("active", "all", *ACTIVE_WORDS, "completed", "failed", "cancelled"):
            raise BadRequest(f"there is no such state of a session: {shown}")
        owner = self.word("user") or None
        scope = repr(("dashboard-sessions", sees, shown, owner))
        at = checks.read_cursor(self.word("after", 500) or None, scope, (float, str))
        views, after = await self.controller.archive.page(
            sees,
            state=None if shown == "all" else shown,
            owner=owner,
            limit=SESSIONS_PER_PAGE,
            after=(at[0], at[1]) if at else None,
        )
        following = checks.make_cursor((float(after[0]), after[1]), scope) if after else None
        mine = [v for v in state.sessions.values() if v.user == self.caller.name and not v.final]
        names = {v.virtual_cluster for v in mine if v.virtual_cluster}
        quotas = clusters_document(state, now)["virtual_clusters"] if names else []
        self.show(
            "sessions.html",
            rows=[session_row(state, view, now) for view in views],
            shown=shown,
            owner=owner or "",
            words=sorted(ACTIVE_WORDS),
            following=following,
            first=at is None,
            quotas=[quota for quota in quotas if quota["name"] in names],
            holds=sum(v.holding for v in mine),
            waits=sum(waiting_by_tier(state, self.caller.name).values()),
        )


class ShowQueue(Page):
    """Who waits: everybody, or one's own sessions."""

    def get(self) -> None:
        tier = self.word("tier")
        if tier and tier not in TIERS:
            raise BadRequest(f"there is no tier {tier}: there are {', '.join(TIERS)}")
        found = queue(
            self.controller.state,
            self.controller.now(),
            self.caller.sees,
            self.number("page"),
            tier,
        )
        self.show("queue.html", queue=found, tier=tier)


class ShowDay(Page):
    """Utilisation and what each tier got, over 24 hours."""

    admins_only = True

    async def get(self) -> None:
        state = self.controller.state
        try:
            day, trouble = await self.dashboard.past.day(self.controller.now()), ""
        except Unavailable as error:
            day, trouble = None, error.message
        devices = sum(len(node.devices) for node in state.nodes.values() if node.connected)
        parameters = state.parameters
        windows = {tier: [0, 0] for tier in TIERS}
        for view in state.sessions.values():
            windows[view.tier.value][0] += view.share.windows
            windows[view.tier.value][1] += view.share.kept
        self.show(
            "day.html",
            day=day,
            trouble=trouble,
            devices=devices,
            chart=day and charts.devices_chart(day, devices),
            attained={t: charts.attained_chart(day, t, parameters) for t in TIERS} if day else {},
            promised={tier: parameters.fraction(tier) for tier in TIERS},
            windows=windows,
            window_s=parameters.sla_window_s,
            left=charts.LEFT,
        )


class ShowQuotas(Page):
    """The virtual clusters: quotas, what is used, what is borrowed."""

    admins_only = True

    def get(self) -> None:
        found = clusters_document(self.controller.state, self.controller.now())
        self.show("quotas.html", quotas=found["virtual_clusters"])


class ShowLog(Page):
    """What happened, newest first, by filters."""

    async def get(self) -> None:
        names = ("user", "session", "node", "rule", "text")
        filters = Filters(**{name: self.word(name) for name in names})
        scope = repr(("dashboard-log", self.caller.sees, filters))
        at = checks.read_cursor(self.word("after", 500) or None, scope, (int, int))
        lines: list[Line] = []
        following, trouble = None, ""
        try:
            lines, following = await self.dashboard.past.log(
                filters, self.caller.sees, LINES_PER_PAGE, (at[0], at[1]) if at else BEGINNING
            )
        except Unavailable as error:
            trouble = error.message
            self.set_status(error.http_status)
        self.show(
            "log.html",
            filters=filters,
            subject=self._subject(filters.session),
            lines=lines,
            trouble=trouble,
            rules=sorted(RULES),
            first=at is None,
            following=following and checks.make_cursor(following, scope),
        )

    def _subject(self, session: str) -> dict[str, Any] | None:
        """The one session that is asked for and has not ended, with what can be done with it."""
        view = self.controller.state.sessions.get(session)
        if view is None or self.caller.sees not in (None, view.user):
            return None
        asks = [(verb, SESSION_ASKS[verb].label) for verb in list_offered(view)]
        return {"view": view, "reason": render(view.why), "asks": asks}


class ShowMetrics(Page):
    """The metrics for Prometheus, for a person who wants to look at them."""

    admins_only = True

    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self.services.metrics.text())
