"""`jupyter singularity cancel`: end sessions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from singularity_proxy.errors import BadRequest, SingularityError
from traitlets import Bool, Float, TraitError, Unicode, validate

from singularity_scheduler.cli.framework import output, texts
from singularity_scheduler.cli.framework.exits import INTERRUPTED, OK, code_of
from singularity_scheduler.cli.look.ls import newest, state_words

from .choosing import SessionApp, find

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

Json = dict[str, Any]
MAX_GRACE_S = 600.0
SHOWN = 10
"""How many sessions the question names."""


class CancelApp(SessionApp):
    """Ends one session, several, or all that are like something."""

    name = "jupyter-singularity-cancel"
    synopsis = "SESSION..."
    fewest = 0
    most: ClassVar[int | None] = None
    description = """End sessions: their processes get SIGTERM and some seconds to finish, what
    they hold is freed, and what was not saved is lost. SESSION is an id, the beginning of one, or
    the name of an active session; when one of them is unknown, none is ended. More than one
    session is only ended after a question or with --yes. With --json: an array of session
    documents."""
    examples = """
        jupyter singularity cancel 3f9c
        jupyter singularity cancel --all --state queued --yes
        jupyter singularity cancel --all --user ada --reason "maintenance tonight"
    """

    everything = Bool(False, config=True, help="All active sessions of one user; see --user.")
    state = Unicode(config=True, help="With --all: only those in this state.").tag(
        argcompleter=state_words
    )
    kind = Unicode(config=True, help='With --all: only "interactive" or only "batch".').tag(
        argcompleter=lambda **_: ["interactive", "batch"]
    )
    user = Unicode(
        config=True,
        help="""With --all: whose sessions. Administrators have to say it, because they see
        everybody's.""",
    )
    reason = Unicode(config=True, help="Why, for the owner's eyes: the reason of the session.")
    grace = Float(5.0, config=True, help="Seconds between SIGTERM and SIGKILL, 0 to 600.")
    flags = {
        "all": ({"CancelApp": {"everything": True}}, "All active sessions of one user."),
        **SessionApp.flags,
    }
    aliases = {
        **{name: f"CancelApp.{name}" for name in ("state", "kind", "user", "reason", "grace")},
        **SessionApp.aliases,
    }

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._labels: dict[str, str] = {}

    @validate("grace")  # type: ignore[untyped-decorator]
    def _check_grace(self, proposal: Any) -> float:
        if not 0 <= float(proposal["value"]) <= MAX_GRACE_S:
            raise TraitError(f"--grace must be a number of seconds from 0 to {MAX_GRACE_S:g}")
        return float(proposal["value"])

    def execute(self) -> int:
        """The question is asked outside of an event loop, where Ctrl-C ends it at once."""
        self._check_selection()
        client = self.client()
        chosen = asyncio.run(self._chosen(client))
        if (len(chosen) > 1 or self.everything) and not self._confirmed(chosen):
            output.note("jupyter singularity cancel: nothing was ended")
            return INTERRUPTED
        return asyncio.run(self._end(client, chosen))

    async def _chosen(self, client: ServiceClient) -> list[str]:
        if self.everything:
            return await self._selected(client)
        chosen = list(dict.fromkeys([await find(client, word) for word in self.words]))
        if len(chosen) > 1:  # an id that is wrong is found out before anything is ended
            for session in chosen:
                self._labels[session] = texts.label(await client.get_session(session))
        return chosen

    def _check_selection(self) -> None:
        if self.everything and self.words:
            raise BadRequest("give sessions or --all, not both; nothing was ended")
        if not self.everything and not self.words:
            raise BadRequest(
                "there is a word missing: jupyter singularity cancel SESSION..., or --all"
            )
        narrowed = next((n for n in ("state", "kind", "user") if getattr(self, n)), None)
        if narrowed and not self.everything:
            raise BadRequest(f"--{narrowed} only goes with --all; nothing was ended")
        if self.state and self.state not in (known := list(state_words())):
            raise BadRequest(f"there is no state '{self.state}'; it is one of {', '.join(known)}")
        if self.kind not in ("", "interactive", "batch"):
            raise BadRequest(f"there is no kind '{self.kind}'; it is interactive or batch")

    async def _selected(self, client: ServiceClient) -> list[str]:
        found, _ = await newest(
            client,
            0,
            state=self.state or "active",
            kind=self.kind or None,
            user=self.user or None,
        )
        users = sorted({str(session["user"]) for session in found})
        if len(users) > 1:
            raise BadRequest(
                f"these are {len(found)} sessions of {len(users)} users "
                f"({', '.join(users[:SHOWN])}); nothing was ended: say whose with --user NAME",
                users=users,
            )
        self._labels |= {str(s["id"]): texts.label(s) for s in found}
        return list(self._labels)

    def _confirmed(self, chosen: Sequence[str]) -> bool:
        """Ask, unless --yes; `BadRequest` when nobody can be asked."""
        if not chosen or self.answer_yes:
            return True
        what = texts.plural(len(chosen), "session")
        if not sys.stdin.isatty():
            raise BadRequest(
                f"{what} would be ended and nobody can be asked here; nothing was ended: "
                "--yes does it",
                sessions=list(chosen),
            )
        for session in chosen[:SHOWN]:
            output.note(f"  {self._labels.get(session, session)}")
        if len(chosen) > SHOWN:
            output.note(f"  and {len(chosen) - SHOWN} more")
        output.note(f"End {what}? [y/N] ", end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    async def _end(self, client: ServiceClient, chosen: Sequence[str]) -> int:
        """End them one after the other; a refusal is told and does not keep the others."""
        ended, code = [], OK
        for session in chosen:
            try:
                answer = await client.end_session(session, self.reason, self.grace)
            except SingularityError as error:
                output.say("jupyter singularity cancel", error, self.json)
                code = code or code_of(error)
                continue
            ended.append(answer)
            if not self.json:
                output.emit(f"{texts.label(answer)} is {texts.outcome(answer)}")
        if self.json:
            output.emit_json(ended)
        elif not chosen:
            output.emit("there is no active session" + (" like that" if self._narrowed() else ""))
        return code

    def _narrowed(self) -> bool:
        return bool(self.state or self.kind or self.user)

    def interrupted(self) -> str:
        return "sessions that were not named above may have ended too: jupyter singularity ls"


main = CancelApp.launch
