"""`jupyter singularity ls`: the sessions one may see, newest first."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import BadRequest
from traitlets import Bool, Enum, Integer, TraitError, Unicode, validate

from singularity_scheduler.cli.framework import output
from singularity_scheduler.cli.framework.base import ServiceApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

Json = dict[str, Any]
PAGE = 1000
"""Sessions that the service gives at once."""


def state_words(*_: object, **__: object) -> Iterable[str]:
    """What --state takes; also its completions."""
    from singularity_scheduler.core.values.states import WORDS

    return ["active", *WORDS]


class LsApp(ServiceApp):
    """Which sessions there are."""

    name = "jupyter-singularity-ls"
    description = """List your sessions, newest first: those that have not ended, or with --all
    all of them. Administrators see everybody's. With --json: an array of session documents."""
    examples = """
        jupyter singularity ls
        jupyter singularity ls --all --kind batch --limit 20
        jupyter singularity ls --user ada --state waiting
        jupyter singularity ls --json | jq -r '.[].id'
    """

    ended = Bool(False, config=True, help="Also those that have ended.")
    state = Unicode(
        config=True,
        help="""Only those in this state: a word of the state column, or "active" for all that
        have not ended. Empty: "active", with --all every state.""",
    ).tag(argcompleter=state_words)
    kind = Enum(
        ["", "interactive", "batch"],
        default_value="",
        config=True,
        help="""Only "interactive" (notebooks) or only "batch" (runs). Empty: both.""",
    ).tag(argcompleter=lambda **_: ["interactive", "batch"])
    user = Unicode(
        config=True, help="Only this user's sessions (for administrators). Empty: all one may see."
    )
    limit = Integer(100, config=True, help="At most this many sessions, the newest. 0: no limit.")
    flags = {
        ("a", "all"): ({"LsApp": {"ended": True}}, "Also those that have ended."),
        **ServiceApp.flags,
    }
    aliases = {
        "state": "LsApp.state",
        "kind": "LsApp.kind",
        "user": "LsApp.user",
        ("n", "limit"): "LsApp.limit",
        **ServiceApp.aliases,
    }

    @validate("limit")  # type: ignore[untyped-decorator]
    def _check_limit(self, proposal: Any) -> int:
        if int(proposal["value"]) < 0:
            raise TraitError("--limit must be a number of sessions, or 0 for all of them")
        return int(proposal["value"])

    async def work(self, client: ServiceClient) -> None:
        if self.state and self.state not in (known := list(state_words())):
            raise BadRequest(f"there is no state '{self.state}'; it is one of {', '.join(known)}")
        state = self.state or (None if self.ended else "active")
        found, more = await newest(
            client, self.limit, state=state, kind=self.kind or None, user=self.user or None
        )
        self.show(found, lambda: self._table(found, state))
        if more and not self.json:
            output.note(f"only the {self.limit} newest are shown; --limit 0 shows all")

    def _table(self, found: list[Json], state: str | None) -> object:
        from .views import session_table

        kinds = "active session" if state == "active" else "session"
        narrowed = self.state or self.kind or self.user
        empty = f"there is no {kinds}" + (" like that" if narrowed else "")
        return session_table(found, datetime.now(timezone.utc), empty)


async def newest(client: ServiceClient, limit: int, **which: str | None) -> tuple[list[Json], bool]:
    """The newest `limit` sessions (0: all) and whether there are more; `which` narrows them as
    `ServiceClient.sessions_page` does."""
    found: list[Json] = []
    cursor = None
    while True:
        want = min(limit - len(found), PAGE) if limit else PAGE
        page = await client.sessions_page(limit=want, cursor=cursor, **which)
        found += page["sessions"]
        cursor = page.get("next")
        if not cursor or (limit and len(found) >= limit):
            return (found[:limit], bool(cursor)) if limit else (found, False)


main = LsApp.launch
