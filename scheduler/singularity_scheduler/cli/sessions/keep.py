"""`jupyter singularity keep`: keep a session alive for a while though nothing uses its devices."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from traitlets import Unicode

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.client.words import kept, parse_duration

from .verbs import WHICH, VerbApp


class KeepApp(VerbApp):
    name = "jupyter-singularity-keep"
    description = f"""Keep a session alive for a while: it is not parked for being idle, its idle
    devices stay with it, and the Hub does not stop its server for that. A session of a higher tier,
    or one of its own that was served less, still goes first. While nothing uses its devices it is
    kept for `keep_max_s` at most, see `parameters`. {WHICH}"""
    examples = """
        jupyter singularity keep train.ipynb --for 2h
        jupyter singularity keep train.ipynb --for 0
    """

    length = Unicode(
        "1h",
        config=True,
        help="""For how long from now on, in place of what was asked before: a number with s, min,
        h or d; without one it is seconds. 0: no longer.""",
    )
    aliases = {"for": "KeepApp.length", **VerbApp.aliases}

    def details(self) -> tuple[Any, ...]:
        return (parse_duration(self.length),)

    def done(self, session: dict[str, Any]) -> str:
        return f"{texts.label(session)} is {kept(session, datetime.now(timezone.utc))}"


main = KeepApp.launch
