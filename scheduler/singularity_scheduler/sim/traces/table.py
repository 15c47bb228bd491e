"""Reads trace files row by row and says in one sentence, with file and row, what is wrong in them.

The only module here that touches files: plain or gzip (told apart by content), UTF-8. Whatever is
in a file, these functions give rows or raise `BadTrace`; no other exception leaves them.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from singularity_proxy.errors import BadRequest

from .records import BadTrace

MAX_LINE = 1 << 20
"""Characters of one line; a longer one means that the file is no table."""
MAX_SECONDS = 1e11
"""Times and durations above this (3,000 years) are refused: a unit is wrong."""
MAX_TICK = 86_400
"""Seconds of one unit of time in a trace."""
MAX_DEVICES = 1_000_000
"""Devices of one job."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a file does not say by itself. Each format uses what it needs (see its reader)."""

    ignore: frozenset[str] = frozenset()
    """Columns that the format does not know and that are passed over instead of refused."""
    tick_s: float = 1.0
    """Tiresias: seconds of one unit of its times; NotebookOS writes minutes (60)."""
    throughputs: str | Path | None = None
    """Gavel: its JSON of measured steps per second (`simulation_throughputs.json`)."""
    worker_type: str = "v100"
    """Gavel: on which type of device of that JSON the work is measured."""
    durations: Mapping[str, float] = field(default_factory=dict[str, float])
    """Pollux, Sia: seconds of one run by application, or by "application/num_replicas"."""
    elastic: bool = False
    """Pollux, Sia: every job may run on 1 device up to what it asks for."""

    def __post_init__(self) -> None:
        if not 0 < self.tick_s <= MAX_TICK:
            raise BadRequest(
                f"tick_s is {self.tick_s}: it must be above 0 and at most {MAX_TICK:,} seconds",
                tick_s=self.tick_s,
            )


PLAIN = ReadOptions()


def lines(path: str | Path) -> Iterator[str]:
    """The lines of a file with their ends; unpacks gzip."""
    file = Path(path).name
    row = 0
    with _opened(path, lambda: row) as text:
        while line := text.readline(MAX_LINE + 1):
            row += 1
            if len(line) > MAX_LINE:
                raise BadTrace(
                    f"{file} row {row} is longer than {MAX_LINE:,} characters: it is no trace",
                    file=file,
                    row=row,
                )
            yield line
    if row == 0:
        raise BadTrace(f"{file} is empty", file=file)


def chunks(path: str | Path, size: int = 1 << 16) -> Iterator[str]:
    """The text of a file in pieces, whatever its lines are like; unpacks gzip. For JSON."""
    with _opened(path, lambda: None) as text:
        while chunk := text.read(size):
            yield chunk


@contextmanager
def _opened(path: str | Path, rows_read: Callable[[], int | None]) -> Iterator[io.TextIOWrapper]:
    """The text of a file; what goes wrong inside the block is told with the row reached."""
    file = Path(path).name
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
                yield text
    except (UnicodeDecodeError, EOFError, zlib.error, OSError) as error:
        row = rows_read()
        place = f"{file} after row {row}" if row else file
        if isinstance(error, UnicodeDecodeError):
            what = "is not text: a trace is CSV, tab columns or JSON, plain or gzip"
        elif isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            what = f"cannot be read: {error.strerror or error}"
        else:
            what = f"is damaged ({error}): fetch it again"
        raise BadTrace(f"{place} {what}", file=file, row=None if row is None else row + 1) from None


class Row:
    """One row of a table: its cells by column, checked as they are asked for."""

    __slots__ = ("_at", "_cells", "file", "number_in_file")

    def __init__(self, file: str, number: int, at: Mapping[str, int], cells: list[str]) -> None:
        self.file = file
        self._at = at
        self._cells = cells
        self.number_in_file = number

    def bad(self, what: str, column: str | None = None) -> BadTrace:
        """The error that says `what` is wrong in this row."""
        return BadTrace(
            f"{self.file} row {self.number_in_file}: {what}",
            file=self.file,
            row=self.number_in_file,
            column=column,
        )

    def text(self, column: str, default: str = "") -> str:
        """The cell without spaces around it; `default` if it is empty or the file lacks it."""
        at = self._at.get(column)
        return default if at is None else self._cells[at].strip() or default

    def seconds(self, column: str) -> float:
        """A time or duration in the cell's own unit: finite and not negative."""
        value = self._number(column)
        if value < 0:
            raise self.bad(f"{column} is {self.text(column)[:40]}: it cannot be negative", column)
        return value

    def whole(self, column: str, low: int = 0, high: int = 1 << 53) -> int:
        """A whole number from `low` to `high`; 4.0 is 4."""
        value = self._number(column, math.inf)
        if not value.is_integer():
            raise self.bad(
                f"{column} is {self.text(column)[:40]}: it must be a whole number", column
            )
        if not low <= value <= high:
            least = f"at least {low}" if value < low else f"at most {high:,}"
            raise self.bad(f"{column} is {self.text(column)[:40]}: it must be {least}", column)
        return int(value)

    def devices(self, column: str, low: int = 1) -> int:
        return self.whole(column, low, MAX_DEVICES)

    def moment(self, column: str) -> float:
        """A date and time as seconds since 1970; one without a zone is taken as UTC."""
        shown = self.text(column)
        try:
            when = datetime.fromisoformat(shown)
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            said = f"is {shown[:40]!r}" if shown else "is missing"
            raise self.bad(
                f"{column} {said}: it must be a time like 2017-10-09 07:01:55", column
            ) from None

    def _number(self, column: str, largest: float = MAX_SECONDS) -> float:
        shown = self.text(column)
        if not shown:
            raise self.bad(f"{column} is missing", column)
        try:
            value = math.nan if "_" in shown else float(shown)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise self.bad(f"{column} is {shown[:40]!r}, which is not a number", column)
        if math.isinf(value) or abs(value) > largest:
            raise self.bad(f"{column} is {shown[:40]}: it is too large", column)
        return value


def rows(
    path: str | Path,
    what: str,
    required: Sequence[str],
    optional: Sequence[str] = (),
    ignore: Collection[str] = (),
) -> Iterator[Row]:
    """The rows under the header of a CSV file. `what` names the format in errors. A column that
    is neither known nor in `ignore` is refused: it may be a misspelt one."""
    file = Path(path).name
    at: dict[str, int] | None = None
    for number, cells in split(path, ","):
        if at is None:
            at = _header(file, number, cells, what, required, optional, ignore)
            width = len(cells)
        elif len(cells) != width:
            raise BadTrace(
                f"{file} row {number} has {len(cells)} fields, but the header has {width}",
                file=file,
                row=number,
            )
        else:
            yield Row(file, number, at, cells)


def split(path: str | Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(row in the file, cells) of every row that is not blank."""
    file = Path(path).name
    # Gavel's tab columns hold shell commands, where a quote is a quote.
    reader = (
        csv.reader(lines(path), strict=True)
        if delimiter == ","
        else csv.reader(lines(path), delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    )
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise BadTrace(
                f"{file} row {reader.line_num} is no row of a table: {error}",
                file=file,
                row=reader.line_num,
            ) from None
        if cells is None:
            return
        if cells and cells != [""]:
            yield reader.line_num, cells


def _header(
    file: str,
    row: int,
    cells: list[str],
    what: str,
    required: Sequence[str],
    optional: Sequence[str],
    ignore: Collection[str],
) -> dict[str, int]:
    names = [cell.strip() for cell in cells]
    known = [*required, *optional]
    # A nameless column is the index that pandas writes.
    unknown = [name for name in names if name and name not in known and name not in ignore]
    missing = [name for name in required if name not in names]
    if missing:
        near = difflib.get_close_matches(missing[0], unknown, 1)
        meant = f" (is {near[0]!r} meant?)" if near else ""
        raise BadTrace(
            f"{file} row {row}: {what} needs a column {missing[0]!r}{meant}",
            file=file,
            row=row,
            column=missing[0],
        )
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1, 0.0)
        raise BadTrace(
            f"{file} row {row}: {what} has no column {unknown[0][:40]!r}; the nearest one is "
            f"{near[0]!r}. Remove or ignore it",
            file=file,
            row=row,
            column=unknown[0],
        )
    twice = next((name for i, name in enumerate(names) if name and name in names[:i]), None)
    if twice is not None:
        raise BadTrace(
            f"{file} row {row}: the column {twice!r} is there twice",
            file=file,
            row=row,
            column=twice,
        )
    return {name: index for index, name in enumerate(names) if name in known}
