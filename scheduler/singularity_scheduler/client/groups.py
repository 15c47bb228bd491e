"""Runs that belong together, such as those of a sweep. Part of `ServiceClient`."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, urlencode

from .calls import Calls, Json

PAGE = 1000
"""Groups per page when all of them are wanted."""


class Groups(Calls):
    """Base of `ServiceClient`."""

    async def submit_group(
        self,
        session: Json,
        members: Sequence[Json],
        *,
        max_parallel: int | None = None,
        timeout_s: int | None = None,
        stop_on_failure: bool = False,
        stop_when: str | None = None,
        objective: Json | None = None,
        key: str | None = None,
    ) -> Json:
        """Submit runs that belong together, all or none; returns the group with its "sessions".

        `session` is what they have in common (as the body of `submit`: ``{"run", "tier",
        "devices", ...}``), `members` what tells each from the others, ``{"values"}``: over the
        notebook's parameters; of commands with a "command" each. At most `max_parallel` of them
        are started at a time. `timeout_s` after it was submitted all of it is ended, waiting
        included. With `stop_on_failure` the first that fails ends the others, with
        `stop_when` ("loss<0.01") the first that recorded such a value; it goes on itself.
        `objective` (``{"primary_metric", "goal"}``) says which is the best in `group_results`. A
        repeated call with the same `key` answers with the same group.
        """
        body: Json = {"session": session, "members": list(members)}
        if max_parallel is not None:
            body["max_parallel"] = max_parallel
        if timeout_s is not None:
            body["timeout_s"] = timeout_s
        if stop_on_failure:
            body["stop_on_failure"] = True
        if stop_when is not None:
            body["stop_when"] = stop_when
        if objective is not None:
            body["objective"] = objective
        return await self._json("POST", "groups", body, key=key)

    async def groups(self) -> list[Json]:
        """Own groups (an admin: all), newest first, without their sessions."""
        found: list[Json] = []
        cursor = None
        while True:
            asked = {"limit": PAGE, **({"cursor": cursor} if cursor else {})}
            page = await self._json("GET", f"groups?{urlencode(asked)}")
            found += page["groups"]
            if not (cursor := page.get("next")):
                return found

    async def get_group(self, group: str) -> Json:
        """One group with its "sessions" by their numbers."""
        return await self._json("GET", f"groups/{quote(group, safe='')}")

    async def group_results(self, group: str) -> Json:
        """What its members recorded: ``{"results": [{"number", "session", "state", "exit_code",
        "values", "recorded"}]}`` by their numbers, `values` and `recorded` with all names that
        there are, `best` with the session that is best by the group's objective (None: nobody can
        tell), and all that `groups` says of it."""
        return await self._json("GET", f"groups/{quote(group, safe='')}/results")

    async def cancel_group(self, group: str, reason: str = "", grace_s: float = 5.0) -> Json:
        """End all of its members that have not ended; idempotent."""
        body: Json = {"grace_s": grace_s, **({"reason": reason} if reason else {})}
        path = f"groups/{quote(group, safe='')}/cancel"
        return await self._json("POST", path, body, timeout=120.0)
