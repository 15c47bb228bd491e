"""What a batch capsule starts: runs one notebook under papermill, or a command, and ends with its
fate.

    RUN_DESCRIPTION='{"notebook": "/home/ada/train.ipynb", "output": "/home/ada/out.ipynb",
                      "parameters": {"lr": 0.1}, "kernel": null, "name": "train.ipynb",
                      "timeout_s": 3600}'
    python -m singularity_kernel.batch

The kernel is a child in the same capsule, so its device calls belong to the session. What the cells
print goes to the standard streams as it comes, between lines like ``cell 3 of 7``. The output
notebook is a whole notebook at any moment. SIGTERM ends the run: the cell is interrupted, what
there is is saved.

Exit codes: 0 all cells ran; 1 a cell raised; 64 parameters that the notebook does not take; 66 the
notebook is missing or none; 69 the kernel could not start; 70 it died under a cell; 73 the output
cannot be written; 124 its time limit is over; 143 cancelled; a command's own. Unless it is 0, the
last line on standard error is one sentence about why.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from singularity_proxy.capsule.process import write_exit_code
from singularity_proxy.elastic.bridge import rendezvous

from .files import (
    WholeFiles,
    check_writable,
    read_notebook,
    refuse_itself,
    set_aside,
    why_not,
)
from .kernels import kernel_of
from .running.collecting import Collector
from .running.commands import run_command
from .running.fates import BadRun, CellFailed, CommandFailed, Fate, NotWritten
from .running.stop import Stop
from .submitting.parameters import check

DESCRIPTION = "RUN_DESCRIPTION"

START_S = 300
"""The kernel has so long to answer; a node may start many at once."""

ERROR_CHARACTERS = 120
"""Of a cell's error in the sentence; the notebook has all of it."""


class Log:
    """Says on the standard streams how far the run is and what its cells put out. A log that cannot
    be written (its disk is full) does not end the run."""

    def __init__(self, collector: Collector | None = None) -> None:
        self.place = "the notebook"
        self._collector = collector

    def cell(self, number: int, count: int) -> None:
        self.place = f"cell {number} of {count}"
        say(self.place)

    def output(self, output: Any) -> None:
        kind = output["output_type"]
        if kind == "stream":
            _write(sys.stderr if output["name"] == "stderr" else sys.stdout, output["text"])
        elif kind == "error":
            _write(sys.stderr, "\n".join(output["traceback"]) + "\n")
        elif "text/plain" in output["data"]:
            _write(sys.stdout, output["data"]["text/plain"] + "\n")

    def recorded(self, name: str, value: Any) -> None:
        if self._collector is not None:
            self._collector.put(name, value)


def say(line: str) -> None:
    """One line on standard error."""
    _write(sys.stderr, line + "\n")


def _write(stream: Any, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        pass


def take_description(environ: MutableMapping[str, str]) -> dict[str, Any]:
    """The run's description, removed from `environ` so that no kernel inherits it."""
    text = environ.pop(DESCRIPTION, "")
    try:
        found = json.loads(text)
        if found.get("command"):
            return {
                "command": str(found["command"]),
                "ranks": int(found["ranks"]),
                **_attempt_of(found),
            }
        wanted = {"notebook": str(found["notebook"]), "output": str(found["output"])}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadRun(
            f"{DESCRIPTION} does not describe a run; nothing was run: the node agent sets it, use "
            "'jupyter singularity submit' to start one"
        ) from None
    return {
        **wanted,
        "parameters": dict(found.get("parameters") or {}),
        "kernel": found.get("kernel"),
        **_attempt_of(found),
    }


def _attempt_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Which attempt of the run this is, and how many seconds of its time limit are left, which
    counts from the start of the first one."""
    limit, began = found.get("timeout_s"), found.get("started_at")
    left = limit
    if limit is not None and began is not None:
        left = min(limit, max(1, round(limit - (time.time() - began))))
    return {
        "timeout_s": limit,
        "left_s": left,
        "attempt": int(found.get("attempt") or 1),
        "attempts": int(found.get("attempts") or 1),
    }


def execute(description: dict[str, Any], stop: Stop, log: Log) -> None:
    """Run the notebook; raises the `Fate` that it ends with when that is not success."""
    refuse_itself(description["notebook"], description["output"])
    notebook = read_notebook(description["notebook"])
    check_writable(description["output"])
    kernel, language = kernel_of(notebook, description["kernel"])
    for note in check(notebook, description["parameters"], language):
        say(f"note: {note}")
    if stop.signum is not None:
        raise stop.fate("nothing was run")

    from papermill import execute_notebook  # type: ignore[import-untyped]
    from papermill.exceptions import PapermillExecutionError  # type: ignore[import-untyped]
    from papermill.iorw import papermill_io  # type: ignore[import-untyped]

    logging.basicConfig(format="%(message)s")
    logging.getLogger("papermill").setLevel(logging.ERROR)  # its notes are ours above
    papermill_io.register("/", WholeFiles())
    try:
        execute_notebook(
            _literal(description["notebook"]),
            _literal(description["output"]),
            parameters=description["parameters"],
            engine_name="singularity",
            kernel_name=kernel,
            language=language,
            start_timeout=START_S,
            progress_bar=False,
            stop=stop,
            live=log,
            without_ids=notebook.nbformat_minor < 5,
        )
    except PapermillExecutionError as error:
        where = f"cell {error.exec_count}" if error.exec_count else log.place
        said = " ".join(f"{error.ename}: {error.evalue}".split()).rstrip(": ")
        if len(said) > ERROR_CHARACTERS:
            said = f"{said[: ERROR_CHARACTERS - 3]}..."
        raise CellFailed(
            f"{where} failed ({said}); the outputs up to there are in {description['output']}"
        ) from None
    except OSError as error:  # papermill's own last save
        raise NotWritten(
            f"the output notebook {description['output']} cannot be written ({why_not(error)}); "
            "its last good version is kept: free space and submit the run again"
        ) from None


def _literal(path: str) -> str:
    """`path` for papermill, which takes braces in paths for parameters."""
    return path.replace("{", "{{").replace("}", "}}")


def run(environ: MutableMapping[str, str]) -> int:
    """Run what the environment describes; returns the exit code, and says why when it is not 0."""
    with Stop().listening() as stop:
        try:
            description = take_description(environ)
            with (
                stop.limited(description["timeout_s"], description["left_s"]),
                Collector.running(environ, say) as collector,
            ):
                begin_attempt(description)
                if "command" in description:
                    with meeting(environ):
                        run_command(description["command"], description["ranks"], stop, environ)
                else:
                    execute(description, stop, Log(collector))
        except CommandFailed as failed:
            say(failed.message)
            return failed.code
        except Fate as fate:
            say(" ".join(fate.message.split()))
            return fate.exit_code
        except Exception as error:  # a fault of papermill's or ours: all of it, then the sentence
            _write(sys.stderr, traceback.format_exc())
            say(f"the run ended with an unexpected {type(error).__name__}; the log has all of it")
            return 1
        return 0


@contextlib.contextmanager
def meeting(environ: Mapping[str, str]) -> Iterator[None]:
    """Where ranks of several nodes meet; of one node that is the ranks' own business."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(rendezvous.kept(environ))
        except OSError as error:
            raise BadRun(
                f"the place where ranks meet cannot be had ({error}); nothing was run"
            ) from None
        yield


def begin_attempt(description: Mapping[str, Any]) -> None:
    """Before a run that was killed starts from its beginning: keep the output of the attempt before
    beside the new one, and say so."""
    if description["attempt"] == 1:
        return
    kept = ""
    if description.get("output"):
        refuse_itself(description["notebook"], description["output"])
        kept = set_aside(description["output"])
    about = f"; what the one before had done is kept in {kept}" if kept else ""
    number = f"{description['attempt']} of {description['attempts']}"
    say(f"attempt {number} starts from the beginning{about}")


def main() -> int:
    """Called by ``python -m singularity_kernel.batch``; returns the exit code."""
    code = run(os.environ)
    write_exit_code(code, os.environ)
    return code


if __name__ == "__main__":
    sys.exit(main())
