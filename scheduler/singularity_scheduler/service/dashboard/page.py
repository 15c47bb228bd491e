"""What every page has in common: who looks, what browsers may do with it, and how it says no."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment
from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler, HubOAuthenticated
from jupyterhub.utils import get_browser_protocol
from singularity_proxy.errors import Forbidden, NotFound, SingularityError
from tornado.web import HTTPError, RequestHandler, StaticFileHandler

from singularity_scheduler import logs
from singularity_scheduler.service.api.auth import Caller
from singularity_scheduler.service.api.callers import Counted
from singularity_scheduler.service.api.problems import Unauthenticated, problem
from singularity_scheduler.service.api.services import Services

from .logins import COOKIE, Login, Logins
from .pace import Pace
from .past import Past
from .render import environment

access_log = logging.getLogger("singularity.access")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No page of ours runs a script or has a style that is not a file of ours, and none is framed."""


@dataclass
class Dashboard:
    """What the pages work with; one per application."""

    services: Services
    base: str
    """Where the pages are, ending in a slash."""
    prefix: str
    """Where the service is, ending in a slash."""
    logins: Logins = field(default_factory=Logins)
    templates: Environment = field(default_factory=environment)
    pace: Pace = field(default_factory=Pace)
    past: Past = field(init=False)

    def __post_init__(self) -> None:
        self.past = Past(self.services.controller.ledger)

    @property
    def hub(self) -> HubOAuth:
        return self.services.gate.hub


class Guarded(Counted):
    """Headers and the access log of everything below the dashboard."""

    dashboard: Dashboard

    def initialize(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, SingularityError):
            super().log_exception(typ, value, tb)

    def on_finish(self) -> None:
        access_log.info("%s %s %d", self.request.method, self.request.path, self.get_status())


class Asset(Guarded, StaticFileHandler):
    """A script or a style: the same for everybody, so nobody has to log in for it."""

    def initialize(self, dashboard: Dashboard, path: str) -> None:  # type: ignore[override]
        Guarded.initialize(self, dashboard)
        StaticFileHandler.initialize(self, path)

    def set_extra_headers(self, path: str) -> None:
        self.set_header("Cache-Control", "no-cache")  # asked for again, and sent if it changed


class Callback(Guarded, HubOAuthCallbackHandler):  # type: ignore[misc]
    """Where the Hub sends a browser back to. The token that it gets stays here."""

    def initialize(self, dashboard: Dashboard) -> None:
        super().initialize(dashboard)
        self.hub_auth = _Doorkeeper(dashboard)

    def get_current_user(self) -> Login | None:
        """Whether the browser is logged in already: it came here a second time."""
        return self.dashboard.logins.get(self.get_cookie(COOKIE))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None))[1]
        said = error.log_message if isinstance(error, HTTPError) else None
        self.finish(
            self.dashboard.templates.get_template("refused.html").render(
                base=self.dashboard.base,
                sentence=f"the login was not completed ({said or self._reason}): try again",
            )
        )


class _Doorkeeper:
    """The Hub's client, but for what it does with a token."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dashboard.hub, name)

    def set_cookie(self, handler: RequestHandler, access_token: str) -> None:
        """Instead of giving the token to the browser."""
        options: dict[str, Any] = {
            "httponly": True,
            "samesite": "Lax",  # strict would ask the Hub again for every link from elsewhere
            "secure": get_browser_protocol(handler.request) == "https",
            **self._dashboard.hub.cookie_options,
            "path": self._dashboard.base,
        }
        handler.set_cookie(COOKIE, self._dashboard.logins.add(access_token), **options)


class Page(HubOAuthenticated, Guarded):  # type: ignore[misc]
    """A page for somebody who is logged in at the Hub; `caller` is who."""

    caller: Caller
    login: Login
    admins_only = False
    streams = False
    _began: float
    """The processor's time when it was known who asks."""

    def initialize(self, dashboard: Dashboard) -> None:
        super().initialize(dashboard)
        self.services = dashboard.services
        self.controller = dashboard.services.controller
        self.hub_auth = dashboard.hub

    async def prepare(self) -> None:
        logs.bind_now(request="")
        login_id = self.get_cookie(COOKIE)
        found = self.dashboard.logins.get(login_id)
        caller = None
        if found is not None:
            caller = await self._caller(found)
            if caller is None:
                self.dashboard.logins.remove(login_id)
        if found is None or caller is None:
            self._ask_to_log_in()
            return
        logs.bind_now(user=caller.name)
        self._check_origin(found)  # first: the answer to who is refused holds nothing of the login
        self.login, self.caller = found, caller
        self.count_in(self.services.callers, caller, stream=self.streams, body_bytes=0)
        self._began = time.thread_time()
        if self.admins_only and not caller.admin:
            raise Forbidden(
                f"{caller.name} may not see this: it takes an administrator (an admin of the Hub, "
                "or the scope custom:singularity:admin)"
            )

    async def _caller(self, login: Login) -> Caller | None:
        session = str(self.dashboard.hub.get_session_id(self))
        try:
            return await self.services.gate.visitor(login.token, session)
        except Unauthenticated:
            return None

    def _ask_to_log_in(self) -> None:
        """Send a person to the Hub; a form or a script is told that its login is over."""
        mode = self.request.headers.get("Sec-Fetch-Mode", "navigate")
        if self.request.method in ("GET", "HEAD") and mode == "navigate":
            self.redirect(self.get_login_url())
            return
        raise Unauthenticated("you are not logged in any more, so nothing was done: log in again")

    def _check_origin(self, login: Login) -> None:
        """Refuse what another page, of the same Hub too, makes a browser do."""
        reads = self.request.method in ("GET", "HEAD")
        mode = self.request.headers.get("Sec-Fetch-Mode", "navigate")
        if reads and mode == "navigate":
            return
        site = self.request.headers.get("Sec-Fetch-Site", "same-origin")
        sent = self.request.headers.get("X-XSRFToken") or self.get_body_argument("_xsrf", "")
        if site != "same-origin" or not compare_digest(sent.encode(), login.xsrf.encode()):
            raise Forbidden(
                "this request does not come from a page of the dashboard as it is now, so nothing "
                "was done: load the page again and repeat it"
            )

    # -- answering --------------------------------------------------------------------------

    def show(self, template: str, **values: Any) -> None:
        """Answer with a page. Called by the handlers of pages, once."""
        self.set_header("Content-Type", "text/html; charset=utf-8")
        page = self.dashboard.templates.get_template(template)
        self.finish(
            page.render(
                base=self.dashboard.base,
                hub=self.dashboard.hub.hub_prefix,
                user=self.caller.name,
                admin=self.caller.admin,
                xsrf=self.login.xsrf,
                path=self.request.path.removeprefix(self.dashboard.base),
                now=self.controller.now(),
                standing=self.controller.ledger_trouble or self.controller.node_trouble,
                link=self.link,
                node_link=self.node_link,
                **values,
            )
        )
        self.dashboard.pace.took(time.thread_time() - self._began)

    def link(self, path: str, **query: object) -> str:
        """The address of a page; values that are None or "" are left out."""
        kept = {k: v for k, v in query.items() if v not in (None, "")}
        return f"{self.dashboard.base}{path}{'?' if kept else ''}{urlencode(kept)}"

    def node_link(self, name: str) -> str:
        """The address of a node's page."""
        return f"{self.dashboard.base}nodes/{quote(name, safe='')}"

    def word(self, name: str, longest: int = 255) -> str:
        """A value of the address, without what could not be meant."""
        return self.get_query_argument(name, "")[:longest].strip()

    def number(self, name: str, fallback: int = 1) -> int:
        """A page number of the address."""
        text = self.get_query_argument(name, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else fallback

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None))[1]
        if isinstance(error, SingularityError):
            self.set_status(error.http_status)
        sentence = problem(error, self.get_status())["detail"]
        if not hasattr(self, "login"):
            template = self.dashboard.templates.get_template("refused.html")
            self.set_header("Content-Type", "text/html; charset=utf-8")
            self.finish(template.render(base=self.dashboard.base, sentence=sentence))
            return
        self.show("error.html", sentence=sentence)


class Missing(Page):
    """Every address below the dashboard that there is not."""

    def get(self) -> None:
        raise NotFound(f"there is no page at {self.request.path}")

    post = get
