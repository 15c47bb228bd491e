"""The pages of accounting: device hours by user, virtual cluster and more, also as CSV."""

from __future__ import annotations

from typing import Any

from singularity_proxy.errors import BadRequest, Unavailable

from singularity_scheduler.client.usage import BY, to_csv
from singularity_scheduler.service.ledger import accounts
from singularity_scheduler.service.ledger.usage_rows import Asked

from .page import Page

WAYS = tuple(way for way in BY if way != "session")

SUMS_PER_PAGE = 200
ALL = 1 << 30
"""More sums than there are."""


class ShowUsage(Page):
    """Device hours, by user, virtual cluster and more; one's own, for who is no administrator."""

    async def get(self) -> None:
        by = _way(self)
        refused, rows, window, more = "", list[dict[str, Any]](), None, False
        try:
            window, asked = _asked(self)
            rows, after = await self.services.accounts.grouped(by, asked, SUMS_PER_PAGE)
            more = after is not None
        except (BadRequest, Unavailable) as error:
            refused = error.message
            self.set_status(error.http_status)
        self.show(
            "usage.html",
            by=by,
            ways=WAYS,
            since=self.word("since", 40),
            until=self.word("until", 40),
            rows=rows,
            window=window,
            refused=refused,
            more=more,
        )


class DownloadUsage(Page):
    """The same as CSV, all of it."""

    async def get(self) -> None:
        by = _way(self)
        _, asked = _asked(self)
        rows, _ = await self.services.accounts.grouped(by, asked, ALL)
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        self.set_header("Content-Disposition", f'attachment; filename="device-hours-by-{by}.csv"')
        self.finish(to_csv(by, rows))


def _way(page: Page) -> str:
    """What is summed; one session is no sum."""
    by = page.word("by") or "user"
    if by not in WAYS:
        raise BadRequest(f"device hours cannot be summed by '{by}': there are {', '.join(WAYS)}")
    return by


def _asked(page: Page) -> tuple[accounts.Window, Asked]:
    """What is to be summed: of what the caller may see."""
    since, until = (page.word(name, 40) or None for name in ("since", "until"))
    window = accounts.window(since, until, page.controller.now())
    return window, Asked(window.since, window.until, window.settled, page.caller.sees)
