"""Who asks: JupyterHub's tokens, checked with the Hub, and what their scopes allow.

`HubOAuth` only: having `HubAuth` beside it in one process fails. For the API only the Authorization
header counts; cookies and tokens in URLs are not accepted, so no web page can act for somebody. The
pages of the dashboard have logins of their own, see `dashboard.page`.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import BadRequest, Forbidden, Unavailable
from tornado.web import HTTPError

from .problems import Unauthenticated

if TYPE_CHECKING:
    from jupyterhub.services.auth import HubOAuth

USE_SCOPE = "custom:singularity:use"
ADMIN_SCOPE = "custom:singularity:admin"
METRICS_SCOPE = "read:metrics"
HUB_ADMIN_SCOPE = "admin:users"
"""Who has it may do anything at the Hub ("tantamount to superuser", its documentation says)."""

CACHE_S = 60
"""How long an answer of the Hub is believed: a revoked token works at most this long."""

MIN_TOKEN = 32
"""Shortest token of the operator, in characters."""

OPERATOR = "operator"
"""Name of the caller who has the operator's token."""

_SERVER = re.compile(r"access:servers!server=(?P<user>[^/]+)/(?P<server>.*)")


@dataclass(frozen=True)
class Caller:
    """Whose token it is."""

    name: str
    is_user: bool
    """False for a service's token: it has no sessions of its own."""
    admin: bool
    server: str | None = None
    """The user's notebook server whose token it is ("": the default one); None for others."""

    @property
    def sees(self) -> str | None:
        """The user whose sessions the caller sees; None for everybody's. A service sees none, even
        when a user has the same name: no user's name has a slash."""
        if self.admin:
            return None
        return self.name if self.is_user else f"service/{self.name}"


class Gate:
    """Checks tokens; one per service. `hub_admins`: whether the Hub's admins are administrators of
    ours. `operator_token`: administrates without asking the Hub ("": there is none).

    Who comes with a token of the Hub's before `open` waits for it."""

    hub: HubOAuth
    """Talks to the Hub with the service's own token, which JupyterHub passes in the environment."""

    def __init__(self, hub_admins: bool = True, operator_token: str = "") -> None:
        self.opened = asyncio.Event()
        """Set by `open`."""
        self.hub_admins = hub_admins
        self._operator_token = operator_token.encode()

    def open(self, hub: HubOAuth) -> None:
        """Ask `hub` from now on. Called once."""
        self.hub = hub
        self.opened.set()

    async def caller(self, authorization: str | None) -> Caller:
        """The caller behind an Authorization header; raises `Unauthenticated`, `Forbidden` or
        `Unavailable`."""
        if self._is_operator(authorization):
            return Caller(OPERATOR, is_user=False, admin=True)
        return self._caller_of(await self._model(authorization))

    def _is_operator(self, authorization: str | None) -> bool:
        token = (_token(authorization) or "").encode()
        return bool(self._operator_token) and hmac.compare_digest(token, self._operator_token)

    async def visitor(self, token: str, hub_session: str) -> Caller:
        """The same of somebody who looks at pages, with the token of the login and the id of the
        browser's session at the Hub: who logs out there is logged out here at once."""
        return self._caller_of(await self._known(token, hub_session), at_pages=True)

    async def reads_metrics(self, authorization: str | None) -> None:
        """Raises, as `caller`, unless the token may read the metrics."""
        if self._is_operator(authorization):
            return
        model = await self._model(authorization)
        if not any(self.hub.check_scopes({s}, model) for s in (ADMIN_SCOPE, METRICS_SCOPE)):
            raise Forbidden(
                f"the token of {model.get('name')} may not read the metrics: it needs the scope "
                f"{METRICS_SCOPE} or {ADMIN_SCOPE}",
                scope=METRICS_SCOPE,
            )

    async def _model(self, authorization: str | None) -> dict[str, Any]:
        token = _token(authorization)
        if token is None:
            raise Unauthenticated(
                "no JupyterHub token came with the request: send 'Authorization: token ...'"
            )
        return await self._known(token)

    async def _known(self, token: str, hub_session: str = "") -> dict[str, Any]:
        await self.opened.wait()
        try:
            model: dict[str, Any] | None = await self.hub.user_for_token(
                token, session_id=hub_session, sync=False
            )
        except HTTPError as error:
            raise Unavailable(
                "JupyterHub could not check the token, so nothing was done "
                f"({error.log_message or error.status_code}): try again in a moment"
            ) from None
        if not model:
            raise Unauthenticated(
                "JupyterHub does not know this token, or it has expired: get a new one"
            )
        return model

    async def close(self) -> None:
        """Close the connections to the Hub of this event loop."""
        if not self.opened.is_set():
            return
        try:
            from jupyterhub.httpclient import JupyterHubHTTPClient
        except ImportError:  # before JupyterHub 6 nothing stays open
            return
        await JupyterHubHTTPClient.loop_instance().close()

    def _is_admin(self, model: dict[str, Any], at_pages: bool) -> bool:
        """By our own scope, or because the Hub says that its user is one of its admins. That is
        enough for who logs in to our pages; a token for the API may have been made to do less than
        its owner may, the one of an admin's notebook server is, so it must be an admin's itself."""
        if self.hub.check_scopes({ADMIN_SCOPE}, model):
            return True
        if not self.hub_admins or model.get("kind") != "user" or model.get("admin") is not True:
            return False
        return at_pages or HUB_ADMIN_SCOPE in (model.get("scopes") or ())

    def _caller_of(self, model: dict[str, Any], at_pages: bool = False) -> Caller:
        scopes = set(model.get("scopes") or ())
        name = str(model.get("name") or "")
        admin = self._is_admin(model, at_pages)
        access = self.hub.access_scopes
        if access and not self.hub.check_scopes(set(access), model):
            raise Forbidden(f"the token of {name} gives no access to this service", user=name)
        if not admin and not self.hub.check_scopes({USE_SCOPE}, model):
            raise Forbidden(
                f"the token of {name} lacks the scope {USE_SCOPE}: ask for a token with it",
                user=name,
                scope=USE_SCOPE,
            )
        return Caller(name, model.get("kind", "user") == "user", admin, _server(name, scopes))


def read_operator_token(path: str) -> str:
    """The token in the file at `path` ("": there is none). Raises `BadRequest` when others may read
    it, or when it is too short for a secret."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(
            f"SchedulerApp.operator_token_file cannot be read ({error}): correct it, or leave it "
            "empty"
        ) from None
    if mode & 0o077:
        raise BadRequest(
            f"others may read {path}, the token of the operator: chmod 600 {path}", path=path
        )
    if len(token) < MIN_TOKEN:
        raise BadRequest(
            f"the token in {path} has fewer than {MIN_TOKEN} characters: write a longer one",
            path=path,
        )
    return token


def make_hub_auth(prefix: str, **settings: Any) -> HubOAuth:
    """Make the Hub's client of this process; there must be only one. `prefix`: where the service
    is. It is handed over because `HubOAuth.base_url` is read from the environment when JupyterHub's
    module is imported, which may be before `hub_variables` completes a service that nobody's Hub
    started: browsers would come back to an address that the Hub refuses."""
    from jupyterhub.services.auth import HubOAuth

    return HubOAuth.instance(cache_max_age=CACHE_S, base_url=prefix, **settings)


def _token(authorization: str | None) -> str | None:
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() in ("token", "bearer") else None


def _server(user: str, scopes: set[str]) -> str | None:
    """The one server that a server's token gives access to."""
    found = {
        match["server"] for s in scopes if (match := _SERVER.fullmatch(s)) and match["user"] == user
    }
    return found.pop() if len(found) == 1 else None
