"""One call of the service: the request, its answer, and refusals as typed errors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import quote

from singularity_proxy.errors import Unavailable, Unreached

from .http import Broken, request
from .problems import to_error

Json = dict[str, Any]

MOVE_S = 600.0
"""How long the verbs wait that write a whole session to the store or read it back."""


class Calls:
    """Base of `ServiceClient`."""

    def __init__(self, url: str, token: str, *, timeout: float = 60.0) -> None:
        """`timeout`: seconds for one call; starting and ending sessions get at least 120."""
        self.url = url.rstrip("/") + "/"
        self._token = token
        self._timeout = timeout

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """The client a single-user server's processes use: SINGULARITY_API_URL and
        JUPYTERHUB_API_TOKEN, set by the spawner. Raises `Unavailable` when one is missing."""
        env = os.environ if environ is None else environ
        missing = [n for n in ("SINGULARITY_API_URL", "JUPYTERHUB_API_TOKEN") if not env.get(n)]
        if missing:
            raise Unavailable(
                f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set, so the "
                "scheduler cannot be reached: start this from a server that the Singularity "
                "spawner started",
                missing=missing,
            )
        return cls(env["SINGULARITY_API_URL"], env["JUPYTERHUB_API_TOKEN"])

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"token {self._token}", "Accept": "application/json"}

    async def _verb(self, session: str, verb: str, body: Json, timeout: float = 0.0) -> Json:
        path = f"sessions/{quote(session, safe='')}/{verb}"
        return await self._json("POST", path, body, timeout=timeout)

    async def _list(self, method: str, path: str, key: str, body: Json | None = None) -> list[Json]:
        found: list[Json] = (await self._json(method, path, body))[key]
        return found

    async def _json(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        key: str | None = None,
        timeout: float = 0.0,
    ) -> Json:
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key:
            headers["Idempotency-Key"] = key
        try:
            async with request(
                method,
                f"{self.url}api/v1/{path}",
                headers,
                None if body is None else json.dumps(body).encode(),
                timeout=max(self._timeout, timeout),
            ) as answer:
                content = await answer.body()
        except Broken as error:
            if error.sent and method != "GET":
                raise Unreached(
                    f"the scheduler service did not answer ({error}), so whether it did what was "
                    "asked is not known: look at how things stand, then try again if it did not",
                    url=self.url,
                ) from None
            raise Unavailable(
                f"the scheduler service does not answer ({error}); nothing was changed: try again "
                "in a moment",
                url=self.url,
            ) from None
        if answer.status >= 300:
            raise to_error(answer.status, answer.reason, content, acts=method != "GET")
        try:
            document = json.loads(content)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise to_error(answer.status, answer.reason, content)
        return document


def without_unsaid(body: Json) -> Json:
    """Return the keys of `body` that say something: neither None nor False."""
    return {key: value for key, value in body.items() if value is not None and value is not False}
