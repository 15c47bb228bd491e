"""`%singularity`: what a notebook says about its session and asks for it.

The verbs go over the per-session agent socket, which has rights on this session only; no token is
involved. They run inside a cell, so the session is busy meanwhile. Some of them move this very
cell: it is frozen in the middle of its question, and the answer comes when it is back, maybe on
another node and hours later (see `asking`).
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display
from singularity_proxy.errors import BadRequest, SingularityError
from singularity_scheduler.client.verbs import VERBS
from singularity_scheduler.client.words import find_nearest, kept, parse_duration
from singularity_scheduler.model.arguments import Form
from singularity_scheduler.model.verbs import BY_NAME
from singularity_scheduler.model.verbs import VERBS as ROWS

from .asking import CameBack, ask
from .memory import device_memory
from .running import RUN, run_cell
from .status import Sentence, Table, checkpoint_rows, history_rows, loss_words, status_rows

OUTSIDE = (
    "This kernel is not a Singularity session, so there is nothing to {verb}: start it from a "
    'server of the platform, with the kernel "Python 3 (Singularity)" or any other.'
)

NAMES = {row.name: row.word.name for row in ROWS if row.word}
"""Verbs that take a word, and which argument that is."""

NEEDED = {row.name: row.word.needed for row in ROWS if row.word and row.word.needed}
"""Verbs that cannot do without theirs, and what it is."""

SUBMIT = "submit"
"""The one verb that is not about this session; see `submitting`. (`run` needs no service.)"""

WHERE = ("device", "node", "cluster")
"""Options of migrate."""

HELP = "help"

VERB_HELP = (
    "status: state and reason, tier, devices, memory, last checkpoint, who waits.",
    *(row.magic.help for row in ROWS if row.magic and row.magic.help),
    "checkpoints: what is stored.",
    "why: why it is in its state.",
    "history: what happened so far.",
    "submit NOTEBOOK: start a notebook as a batch run; --notebook: this one, as it was saved last; "
    "on a cell (%%singularity submit): that cell. It takes -p NAME VALUE and the other options of "
    "`jupyter singularity submit` for parameters, -o, -k, --name, --tier, --devices, --share, "
    "--priority, --virtual-cluster and --env.",
    "run: on a cell (%%singularity run --ranks 4 ARGUMENTS): run it as a script in so many "
    "processes, each with a virtual device of its own and the variables of torchrun; default: one "
    "for each device.",
    "help: this list.",
)
"""What each verb does, after its name; one sentence may be about two."""


def describe_words() -> str:
    """Return what the word of each verb is, verbs with the same kind of word together."""
    groups: dict[str, list[str]] = {}
    for row in ROWS:
        if row.magic and row.magic.word:
            groups.setdefault(row.magic.word, []).append(row.name)
    said = "; ".join(f"{', '.join(names)}: {word}" for word, names in groups.items())
    return f"{said}. It may have spaces."


@magics_class
class SingularityMagics(Magics):  # type: ignore[misc]
    """Holds the one line magic; registered by `load_ipython_extension`."""

    @magic_arguments()  # type: ignore[untyped-decorator]
    @argument(
        "verb",
        nargs="?",
        default="status",
        help=" ".join(VERB_HELP).replace("%", "%%"),
    )  # type: ignore[untyped-decorator]
    @argument("name", nargs="*", help=describe_words())  # type: ignore[untyped-decorator]
    @argument(
        "--device",
        help='migrate: the device to go to, its number or its name ("cpu:1"). Default: any other.',
    )  # type: ignore[untyped-decorator]
    @argument("--node", help="migrate: the node to go to.")  # type: ignore[untyped-decorator]
    @argument("--cluster", help="migrate: the cluster to go to, to the best node there.")  # type: ignore[untyped-decorator]
    @argument(
        "--limit", type=int, default=20, help="history: how many changes, newest kept (default 20)."
    )  # type: ignore[untyped-decorator]
    @line_cell_magic  # type: ignore[untyped-decorator]
    def singularity(self, line: str, cell: str | None = None) -> None:
        """Show this notebook's session, or act on it."""
        word, _, rest = line.strip().partition(" ")
        if word == SUBMIT:
            _submit(rest, cell)
            return
        if word == RUN:
            _run(rest, cell)
            return
        if word in ("-h", "--help"):
            line = HELP
        if cell is not None:
            raise UsageError(
                f"%%singularity only has '{SUBMIT}' and '{RUN}': use %singularity {line}"
            )
        options = parse_argstring(self.singularity, line)
        verb = options.verb
        if verb == HELP:
            display(Table("%singularity", [_split_help(each) for each in VERB_HELP]))
            return
        if verb not in VERBS:
            raise UsageError(_unknown_verb(verb))
        arguments = _arguments(verb, options)
        path = os.environ.get("SINGULARITY_SOCKET")
        if not path:
            display(Sentence(OUTSIDE.format(verb="show" if verb == "status" else verb)))
            return
        try:
            answer = ask(path, verb, arguments)
        except SingularityError as error:
            # A UsageError is shown as its sentence, without a traceback.
            raise UsageError(error.message) from None
        if isinstance(answer, CameBack):
            display(Sentence(returned(verb, answer, datetime.now(timezone.utc))))
            return
        if verb == "status":
            # A cell runs, this one: the report of its start may still be under way.
            answer = {**answer, "busy": True}
            answer["memory"] = device_memory(answer.get("devices") or ())
        display(present(verb, answer, datetime.now(timezone.utc)))


def _submit(line: str, cell: str | None) -> None:
    from .submitting import submit

    path = os.environ.get("SINGULARITY_SOCKET")
    if not path:
        display(Sentence(OUTSIDE.format(verb=SUBMIT)))
        return
    try:
        submit(line, cell, path)
    except SingularityError as error:
        raise UsageError(error.message) from None


def _run(line: str, cell: str | None) -> None:
    if not os.environ.get("SINGULARITY_SESSION"):
        display(Sentence(OUTSIDE.format(verb=RUN)))
        return
    run_cell(line, cell, os.environ)


def _split_help(sentence: str) -> tuple[str, str]:
    """Return the names that a sentence of the help begins with, and what it says of them."""
    names, _, said = sentence.partition(": ")
    return names, said


def _unknown_verb(verb: str) -> str:
    known = (*VERBS, SUBMIT, RUN, HELP)
    near = find_nearest(verb, known)
    knows = f"knows {', '.join(known)}."
    hint = f"did you mean '{near}'? It {knows}" if near else f"it {knows}"
    return f"%singularity has no verb '{verb}'; {hint}"


def _arguments(verb: str, options: Any) -> dict[str, Any]:
    """The call's arguments; an option that the verb does not know is the user's fault."""
    name = unquoted(" ".join(options.name)) if options.name else None
    if name is not None and verb not in NAMES:
        hint = (
            " (where to is given with --device, --node or --cluster)" if verb == "migrate" else ""
        )
        raise UsageError(f"'{verb}' takes no name{hint}; {', '.join(NAMES)} do.")
    for option in WHERE:
        if getattr(options, option) is not None and verb != "migrate":
            raise UsageError(f"'{verb}' takes no --{option}; only 'migrate' does.")
    if verb in NEEDED and not name:
        raise UsageError(f"'{verb}' needs {NEEDED[verb]}")
    word = BY_NAME[verb].word if verb in BY_NAME else None
    if word and word.form is Form.SECONDS:
        try:
            return {word.name: parse_duration(str(name))}
        except BadRequest as error:
            raise UsageError(error.message) from None
    if word and word.form is Form.COUNT:
        if not str(name).isdecimal():
            raise UsageError(f"'{verb}' needs {word.needed}, not {name}")
        return {word.name: int(str(name))}
    if verb == "migrate":
        device = options.device
        if sum(getattr(options, option) is not None for option in WHERE) > 1:
            raise UsageError("give either --device, --node or --cluster, not two of them.")
        for option in ("node", "cluster"):
            if (word := getattr(options, option)) is not None:
                return {option: word}
        if device is None:
            return {}
        return {"device": int(device) if device.isdigit() else device}
    if verb in NAMES:
        return {NAMES[verb]: name} if name else {}
    if verb == "history":
        if options.limit < 1:
            raise UsageError("--limit must be 1 or more.")
        return {"limit": options.limit}
    return {}


def unquoted(text: str | None) -> str | None:
    """A word of a magic's line without the quotes that held it together."""
    if text and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def present(verb: str, answer: Any, now: datetime) -> Table | Sentence:
    """The display of a verb's answer."""
    if verb == "why":
        return Sentence(str(answer.get("sentence", "")))
    if verb == "history":
        entries = answer.get("history", []) if isinstance(answer, dict) else answer
        title = f"History, times in {now.tzname()}"
        return Table(title, history_rows(entries, now), empty="nothing happened yet")
    if verb == "status":
        title = " ".join(str(answer[k]) for k in ("id", "name") if answer.get(k))
        return Table(f"Session {title}", status_rows(answer, now))
    if verb == "checkpoints":
        return Table("Checkpoints", checkpoint_rows(answer, now), empty="nothing is stored yet")
    return Sentence(_done(verb, answer, now))


def _done(verb: str, answer: Any, now: datetime) -> str:
    """What a verb did, in one sentence: the scheduler's own reason, and where that led."""
    rows = dict(status_rows(answer, now))
    if verb == "checkpoint":
        return f"Checkpoint stored: {rows['Last checkpoint']}."
    if verb == "fork":
        label = " ".join(str(answer[k]) for k in ("id", "name") if answer.get(k))
        return f"A second session, {label}, begins there; it is {answer.get('state')} now."
    if verb == "keep":
        return f"This session is {kept(answer, now)}."
    if verb in BY_NAME and (command := BY_NAME[verb].command) and verb in command.shows:
        return f"Its {verb} is {answer.get(verb)} now."
    reason = str(answer.get("reason") or answer.get("state") or "done")
    where = f" ({rows['Devices']})" if answer.get("devices") else ""
    return f"{reason[:1].upper()}{reason[1:]}{where}."


def returned(verb: str, came: CameBack, now: datetime) -> str:
    """What a cell says that was frozen while it asked: it has been away, or was copied."""
    status = came.status
    if came.loss is None:
        if verb == "checkpoint" and came.stored:
            return _done(verb, status, now)
        what = f"The connection was cut, and '{verb}' was not confirmed"
        return f"{what}; the session goes on: {status.get('reason') or status.get('state')}."
    where = f", now on node {status['node']}" if status.get("node") else ""
    return f"This cell was away for {came.away} and goes on{where}: {loss_words(came.loss)}."
