"""`%%singularity run`: a cell as several ranks on the session's virtual devices.

The cell becomes a script in a scratch folder, each rank a process of this kernel with the variables
of `torchrun` around it. What ranks print comes into the output as it is printed, with the rank in
front; an interrupt ends all of them, and one that fails ends the others.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, TextIO

from IPython.core.error import UsageError
from singularity_proxy.elastic.ranks import RankFailed, run_ranks, script

RUN = "run"

NAME = "cell.py"
"""Of the script; tracebacks of ranks show it."""

_OVERWRITES = re.compile(r"\r(?!\n)")
"""Goes back to the beginning of the line, as progress bars do."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%singularity run: {message}; nothing was started")


def run_cell(line: str, cell: str | None, environ: Mapping[str, str]) -> None:
    """Run the cell as ranks, to their end; called by the magic. Raises UsageError when the line is
    wrong, and when a rank failed (its own traceback is above)."""
    if cell is None:
        raise UsageError("run is for a cell: %%singularity run --ranks 4, with the code below")
    ranks, arguments = _options(line, int(environ.get("SINGULARITY_DEVICES") or 1))
    here = os.getcwd()
    path = environ.get("PYTHONPATH")
    environ = {
        **environ,
        # A script finds modules beside itself, a cell beside the notebook.
        "PYTHONPATH": f"{here}:{path}" if path else here,
        "PYTHONUNBUFFERED": "1",
    }
    with tempfile.TemporaryDirectory(prefix="singularity-cell-") as folder:
        file = Path(folder) / NAME
        file.write_text(cell, encoding="utf-8")
        try:
            command, shown = script(str(file), *arguments), Shown(sys.stdout)
            run_ranks(command, ranks, environ, shown, pieces=True)
        except RankFailed as error:
            raise UsageError(f"{error}.") from None


def _options(line: str, devices: int) -> tuple[int, list[str]]:
    """-> (ranks, the script's arguments)."""
    parser = _Parser("%%singularity run", add_help=False, allow_abbrev=False)
    parser.add_argument("--ranks", type=int, default=devices)
    try:
        options, arguments = parser.parse_known_args(shlex.split(line))
    except ValueError as error:  # a quote that is not closed
        raise UsageError(f"%%singularity run: {error}; nothing was started") from None
    if not 1 <= options.ranks <= devices:
        has = "1 virtual device" if devices == 1 else f"{devices} virtual devices"
        raise UsageError(
            f"this session has {has} and each rank needs one of its own, so it runs 1 to {devices} "
            f"ranks, not {options.ranks}; nothing was started (start a notebook with more devices)"
        )
    return options.ranks, arguments


class Shown:
    """Writes what ranks print to `out`, each line behind its rank. Pieces of a line stand in one
    line while no other rank prints, and what overwrites a line does not overwrite its rank."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._open: int | None = None
        """The rank whose line has no end yet."""

    def __call__(self, rank: int, piece: str) -> None:
        label = f"[rank {rank}] "
        text = _OVERWRITES.sub(f"\r{label}", piece)
        if self._open is None:
            text = label + text
        elif self._open != rank:
            text = f"\n{label}{text}"
        self._open = None if piece.endswith("\n") else rank
        self._out.write(text)
        self._out.flush()
