"""The few calls to the Hub's REST API that the platform makes for its callers."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from singularity_proxy.errors import SingularityError, Unavailable
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse


class HubError(SingularityError):
    """The Hub said no; `fields["status"]` is the HTTP status."""

    reason = "hub"


class HubApi:
    """Calls the Hub behind `url` (its public URL) with `token`; use it on a running loop."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._token = token

    async def healthy(self) -> bool:
        """Whether the whole Hub answers; while it starts, the proxy alone answers 404."""
        return await self.status("/hub/health") == 200

    async def status(self, path: str) -> int:
        """HTTP status of a GET of `path`, 0 when nobody answers."""
        try:
            response = await self._fetch("GET", path, timeout=2.0)
        except (OSError, HTTPClientError):
            return 0
        return int(response.code)

    async def call(self, method: str, path: str, body: Any = None, timeout: float = 60.0) -> Any:
        """One call below ``/hub/api``; its JSON answer (None when empty) or `HubError`."""
        try:
            response = await self._fetch(method, f"/hub/api/{path}", body, timeout)
        except (OSError, HTTPClientError) as error:
            raise Unavailable(f"JupyterHub does not answer at {self.url} ({error})") from None
        if response.code >= 400:
            raise HubError(_message(response), status=response.code)
        return json.loads(response.body) if response.body else None

    async def ensure_user(self, name: str) -> None:
        """Make the Hub user `name` unless it exists."""
        try:
            await self.call("POST", f"users/{quote(name, safe='')}", {})
        except HubError as error:
            if error.fields["status"] != 409:
                raise

    async def new_token(self, name: str, seconds: int = 24 * 3600) -> str:
        """An API token with all rights of the user `name`, valid for `seconds`."""
        await self.ensure_user(name)
        body = {"note": "from the platform", "expires_in": seconds}
        answer = await self.call("POST", f"users/{quote(name, safe='')}/tokens", body)
        token: str = answer["token"]
        return token

    async def server(self, user: str, name: str = "") -> dict[str, Any] | None:
        """The Hub's model of a server that runs or starts or stops, else None."""
        model = await self.call("GET", f"users/{quote(user, safe='')}?include_stopped_servers")
        server: dict[str, Any] | None = (model.get("servers") or {}).get(name)
        if server is None or (server.get("stopped") and not server.get("pending")):
            return None
        return server

    async def _fetch(
        self, method: str, path: str, body: Any = None, timeout: float = 60.0
    ) -> HTTPResponse:
        request = HTTPRequest(
            self.url + path,
            method=method,
            headers={"Authorization": f"token {self._token}"},
            body=None if body is None else json.dumps(body),
            allow_nonstandard_methods=True,
            connect_timeout=2.0,
            request_timeout=timeout,
            follow_redirects=False,
        )
        return await AsyncHTTPClient().fetch(request, raise_error=False)


def _message(response: HTTPResponse) -> str:
    try:
        message = json.loads(response.body)["message"]
    except (ValueError, KeyError, TypeError):
        message = None
    return str(message or f"JupyterHub answered {response.code} {response.reason}")
