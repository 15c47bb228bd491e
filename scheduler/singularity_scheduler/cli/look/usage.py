"""`jupyter singularity usage`: who used how much of the platform."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import BadRequest
from traitlets import Enum, Unicode

from singularity_scheduler.cli.framework import output, texts
from singularity_scheduler.cli.framework.base import ServiceApp
from singularity_scheduler.cli.framework.exits import CannotWrite
from singularity_scheduler.cli.framework.tables import Column, Table
from singularity_scheduler.client.words import duration, parse_time

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

Json = dict[str, Any]

SHORT = {"vc": "virtual_cluster"}
"""Words for --by that are short for others."""

UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def words(*_: object, **__: object) -> Iterable[str]:
    """What --by takes; also its completions."""
    from singularity_scheduler.client.usage import BY

    return [*BY, *SHORT]


class UsageApp(ServiceApp):
    """Accounting."""

    name = "jupyter-singularity-usage"
    description = """Show what sessions used: how long they waited, device time, time parked and
    suspended, preemptions and checkpoints. A session that was there before or after this time
    counts for its part in it. Administrators see everybody's. With --json: the sums with all
    figures, in seconds and bytes; with --csv: the same as a file."""
    examples = """
        jupyter singularity usage
        jupyter singularity usage --by vc --since 30d
        jupyter singularity usage --by day --since 2026-11-01 --until 2026-12-01 --csv november.csv
        jupyter singularity usage --by session --user ada --json
    """
    by = Unicode(
        "user",
        config=True,
        help="""What is summed: "user", "virtual_cluster" (or "vc"), "experiment" (of job files),
        "tier" or "day"; "session": a line for each session.""",
    ).tag(argcompleter=words)
    since = Unicode(
        "7d",
        config=True,
        help="""From when on: so long ago ("90min", "12h", "7d", "4w") or a time ("2026-11-01",
        "2026-11-01T08:00:00Z"; in UTC unless it says otherwise).""",
    )
    until = Unicode(config=True, help="Until when, as --since. Empty: now.")
    user = Unicode(config=True, help="Only this user's sessions (for administrators).")
    csv = Unicode(config=True, help='Write the sums to this file as CSV; "-": print them.')
    sort = Enum(
        ["device_s", "name"],
        default_value="device_s",
        config=True,
        help='Order of the table: "device_s", most device time first, or "name".',
    )
    aliases = {
        "by": "UsageApp.by",
        "since": "UsageApp.since",
        "until": "UsageApp.until",
        "user": "UsageApp.user",
        "csv": "UsageApp.csv",
        "sort": "UsageApp.sort",
        **ServiceApp.aliases,
    }

    async def work(self, client: ServiceClient) -> None:
        by, now = SHORT.get(self.by, self.by), time.time()
        if by not in (known := list(words())):
            raise BadRequest(f"--by is '{self.by}', but it must be one of {', '.join(known)}")
        if self.csv and self.json:
            raise BadRequest("--csv and --json are two forms of the same answer: give one of them")
        since, until = moment("since", self.since, now), moment("until", self.until, now)
        found = await client.usage(by, since, until, self.user or None)
        if self.csv:
            self._write(by, found["usage"])
            return
        self.show(found, lambda: usage_table(found, self.sort == "device_s"))

    def _write(self, by: str, rows: list[Json]) -> None:
        from singularity_scheduler.client.usage import to_csv

        text = to_csv(by, rows)
        if self.csv == "-":
            output.emit(text, end="")
            return
        path = Path(self.csv).expanduser()
        try:
            path.write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            raise CannotWrite(f"{path} cannot be written ({error.strerror})") from None
        output.note(f"{texts.plural(len(rows), 'line')} written to {path}")


def moment(option: str, text: str, now: float) -> float | str | None:
    """UNIX seconds for "7d"; a time as it is, for the service to read; None for none."""
    text = text.strip()
    if not text:
        return None
    if ago := re.fullmatch(rf"(\d+(?:\.\d+)?)\s*({'|'.join(UNITS)})", text):
        return now - float(ago[1]) * UNITS[ago[2]]
    if parse_time(text) is None:
        raise BadRequest(
            f"--{option} is '{text}', but it must be like 90min, 12h, 7d or 4w, or a time such as "
            "2026-11-01 or 2026-11-01T08:00:00Z"
        )
    return text


def usage_table(found: Json, most_first: bool) -> Table:
    """Sums for people."""
    by, rows = found["by"], found["usage"]
    if most_first and by != "day":
        rows = sorted(rows, key=lambda row: -float(row["device_s"]))
    columns = [
        *_ABOUT.get(by, [Column(by.replace("_", " "), least=8, style="bold")]),
        *([] if by == "session" else [Column("sessions", right=True)]),
        Column("device time", right=True),
        Column("queued", right=True, drop=3),
        Column("waited", right=True),
        Column("parked", right=True, drop=2),
        Column("suspended", right=True, drop=2),
        Column("preempted", right=True),
        Column("checkpoints", right=True, drop=1),
        Column("stored", right=True, drop=1),
        Column("sent", right=True, drop=1),
    ]
    lines = [
        [
            *_about(by, row),
            *([] if by == "session" else [str(row["sessions"])]),
            *(
                duration(row[name])
                for name in ("device_s", "queued_s", "waiting_s", "parked_s", "suspended_s")
            ),
            str(row["preemptions"]),
            str(row["checkpoints"]),
            texts.size(row["stored_bytes"]),
            texts.size(row["sent_bytes"]),
        ]
        for row in rows
    ]
    return Table(columns, lines, f"no session was there {_between(found)}")


_ABOUT = {
    "session": [
        Column("session", style="bold"),
        Column("user", least=8),
        Column("name", least=12),
        Column("tier", drop=3),
    ]
}


def _about(by: str, row: Json) -> list[str]:
    if by == "session":
        return [texts.clean(row[name]) for name in ("session", "user", "name", "tier")]
    return [texts.clean(row[by]) if row[by] is not None else "(none)"]


def _between(found: Json) -> str:
    def shown(text: str) -> str:
        then = parse_time(text) or datetime.now(timezone.utc)
        return then.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M")

    return f"between {shown(found['since'])} and {shown(found['until'])} UTC"


main = UsageApp.launch

__all__ = ["UsageApp", "main"]
