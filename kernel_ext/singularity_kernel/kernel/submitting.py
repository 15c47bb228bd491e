"""`%singularity submit NOTEBOOK` and `%%singularity submit`: a notebook, or a cell, as a batch run.

The run is started through the session's own socket, so no token is in the kernel. Its card in the
output goes on being updated, from a thread, for as long as the kernel lives or until the run ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import threading
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.display import display
from singularity_proxy.errors import BadRequest, NotFound, SingularityError, Unavailable, Unreached
from singularity_proxy.wire.rpc import SyncPeer

from .status import Table

Json = dict[str, Any]

ASK_S = 30.0
"""How long the answer to one question may take."""

WAIT_S = 20.0
"""After so long the service answers although nothing has changed."""

PAUSE_S = 0.4
"""Least time between two updates of a card."""

RETRY_S = 1.0
TRIES = 3

MAGIC = ("%singularity submit", "%%singularity submit")

ENDED = ("completed", "failed", "cancelled")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%singularity submit: {message}; nothing was started")


def _parser() -> argparse.ArgumentParser:
    from singularity_kernel.batch.submitting.said import OPTIONS

    made = _Parser("%singularity submit", add_help=False, allow_abbrev=False)
    made.add_argument("path", nargs="?")
    made.add_argument("--notebook", action="store_true")
    made.add_argument("-o", "--output", default="")
    made.add_argument("-k", "--kernel", default="")
    made.add_argument("--name", default="")
    made.add_argument("--tier", default="")
    made.add_argument("--devices", type=int)
    made.add_argument("--share", type=float)
    for each in OPTIONS:
        made.add_argument(f"--{each.key.replace('_', '-')}", default="")
    made.add_argument("--run-timeout", type=int)
    made.add_argument("--max-retries", type=int)
    made.add_argument("--checkpoint-every-s", type=float)
    return made


def submit(line: str, cell: str | None, socket: str) -> None:
    """Start what the words of `line` say and show its card; called by the magic. Raises a typed
    error, or `UsageError`, with nothing started; `Unreached` when that is not known."""
    request, notes, made = _request(line, cell)
    try:
        answer = _send(socket, request)
    except Unreached as error:
        raise Unreached(
            f"the run may have been started: its answer was lost ({error.message}); "
            "'jupyter singularity ls' shows it if it was"
        ) from None
    except SingularityError:
        if made is not None:  # else, interrupted say, it may be what a run begins with
            made.unlink(missing_ok=True)
        raise
    run = answer["run"]
    handle = display(card(run, notes), display_id=True)
    if handle is not None and run["state"] not in ENDED:
        Follower(socket, answer, notes, handle).start()


def card(run: Json, notes: list[str], trouble: str = "") -> Table:
    """A run as text or HTML: its id, state, reason and output."""
    output = str((run.get("run") or {}).get("output") or "")
    written = "Output" if run["state"] in ENDED else "Output will be"
    devices = run.get("devices") or ()
    rows = [
        ("State", str(run["state"])),
        ("Reason", str(run.get("reason") or "")),
        ("Tier", str(run.get("tier") or "")),
        ("Devices", ", ".join(map(str, devices))),
        (written, output),
        ("Follow it", f"jupyter singularity logs -f {run['id']}"),
        *(("Note", note) for note in notes),
        ("Trouble", trouble),
    ]
    title = " ".join(part for part in ("Run", str(run["id"]), str(run.get("name") or "")) if part)
    return Table(title, [row for row in rows if row[1]])


class Follower(threading.Thread):
    """Keeps a card as the run is. Ends with the run, or with the kernel."""

    def __init__(self, socket: str, answer: Json, notes: list[str], handle: Any) -> None:
        super().__init__(name=f"singularity-run-{answer['run']['id']}", daemon=True)
        self._socket = socket
        self._answer = answer
        self._notes = notes
        self._handle = handle

    def run(self) -> None:
        trouble = ""
        while self._answer["run"]["state"] not in ENDED:
            try:
                # Anew after each break: the process image of a session has no connections.
                with SyncPeer(self._socket, timeout=WAIT_S + ASK_S) as peer:
                    while self._answer["run"]["state"] not in ENDED:
                        self._look(peer, trouble != "")
                        trouble = ""
            except (NotFound, BadRequest) as error:
                self._show(error.message)
                return
            except SingularityError as error:
                if trouble != (trouble := f"this may be old: {error.message}"):
                    self._show(trouble)
                time.sleep(RETRY_S)

    def _look(self, peer: SyncPeer, show: bool) -> None:
        run, seen = self._answer["run"], self._answer["seen"]
        self._answer = peer.call("run", run=run["id"], seen=seen, wait_s=WAIT_S)
        if show or self._answer["seen"] != seen:
            self._show()
            time.sleep(PAUSE_S)

    def _show(self, trouble: str = "") -> None:
        self._handle.update(card(self._answer["run"], self._notes, trouble))


# ---- what is sent --------------------------------------------------------------------------------


def _request(line: str, cell: str | None) -> tuple[Json, list[str], Path | None]:
    """The spec, notes for the user, and the notebook that was made for it."""
    from singularity_scheduler.jobs.wishes import merged

    from singularity_kernel.batch.running.fates import Fate
    from singularity_kernel.batch.submitting.options import split_options
    from singularity_kernel.batch.submitting.said import OPTIONS
    from singularity_kernel.batch.submitting.submission import Asked, of_words, typed
    from singularity_kernel.batch.submitting.submit import surroundings

    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%singularity submit: {error}; nothing was started") from None
    given, rest = split_options(words)
    options = _parser().parse_args(rest)
    path, made = _notebook(options, cell)
    wishes = {
        "tier": options.tier,
        "devices": options.devices,
        "device_share": options.share,
        **{each.key: getattr(options, each.key) for each in OPTIONS},
        "checkpoint_every_s": options.checkpoint_every_s,
    }
    try:
        asked = Asked(
            path,
            options.output,
            options.kernel,
            parameters=given.parameters(),
            variables=given.variables(os.environ),
            timeout_s=options.run_timeout,
            max_retries=options.max_retries,
        )
        found = of_words(asked, options.name, wishes, os.environ)
        request = merged(found.request, surroundings(found.request, os.environ))
    except BaseException as error:
        if made is not None:
            made.unlink(missing_ok=True)
        if isinstance(error, Fate):
            raise typed(error) from None
        raise
    # A cell has no cell of parameters, and that is no news.
    notes = [] if cell is not None and not options.notebook else list(found.notes)
    return request, notes, made


def _notebook(options: argparse.Namespace, cell: str | None) -> tuple[str, Path | None]:
    """What is run, and the file that was made for that."""
    if options.path and (options.notebook or cell is not None):
        raise UsageError(
            "%singularity submit takes one notebook: give a file, --notebook or a cell"
        )
    if options.path:
        return options.path, None
    if not options.notebook and cell is None:
        raise UsageError(
            "%singularity submit needs a notebook: give a file, or --notebook for this one; "
            "%%singularity submit runs its cell"
        )
    own = os.environ.get("JPY_SESSION_NAME", "")
    source = own if own.endswith(".ipynb") and os.path.isfile(own) else ""
    if options.notebook:
        if not source:
            raise UsageError(
                "this kernel does not know the file of its notebook: give it, as "
                "%singularity submit NOTEBOOK; nothing was started"
            )
        return _written(_without_submits(source), Path(source))
    return _written(_of_cell(cell or "", source), Path("cell.ipynb"))


def _without_submits(path: str) -> Any:
    """The notebook as it was saved last, without cells that would submit it again."""
    from singularity_kernel.batch.files import read_notebook

    found = read_notebook(path)
    found.cells = [
        cell
        for cell in found.cells
        if not (cell.cell_type == "code" and str(cell.source).lstrip().startswith(MAGIC))
    ]
    return found


def _of_cell(text: str, source: str) -> Any:
    """A notebook of this cell alone, for the kernel of the notebook that it is in."""
    import nbformat

    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    if source:
        from singularity_kernel.batch.files import read_notebook
        from singularity_kernel.batch.running.fates import Fate

        with contextlib.suppress(Fate):  # of a notebook that cannot be read: the usual one
            spec = dict(read_notebook(source).metadata.get("kernelspec") or spec)
    make: Any = nbformat.v4
    return make.new_notebook(cells=[make.new_code_cell(text)], metadata={"kernelspec": spec})


def _written(notebook: Any, near: Path) -> tuple[str, Path]:
    """Write it beside `near`, under a name of its own."""
    import nbformat

    write: Any = nbformat.write
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    path = near.resolve().with_name(f"{near.stem}-{stamp}.ipynb")
    try:
        write(notebook, path)
    except OSError as error:
        raise BadRequest(
            f"the notebook of the run cannot be written to {path} ({error.strerror}); nothing was "
            "started: change to a folder that can be written"
        ) from None
    return str(path), path


def _send(socket: str, request: Json) -> Json:
    """Return the answer to `request`. Raises `Unreached` when one of the tries may have started the
    run, and a refusal as it is when none has."""
    from singularity_scheduler.client.repeat import Wish

    wish, tries = Wish(), 0
    while True:
        try:
            return _ask(socket, request, wish.key)
        except Unavailable as error:
            wish.note_failure(error, over=(tries := tries + 1) == TRIES)
        time.sleep(RETRY_S)


def _ask(socket: str, request: Json, key: str) -> Json:
    with SyncPeer(socket, timeout=ASK_S) as peer:
        answer: Json = peer.call("submit", spec=request, key=key)
    return answer
