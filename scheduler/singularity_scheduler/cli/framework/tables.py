"""Tables: what is in them, apart from how they look.

On a terminal rich draws them, in colour and as wide as the window; to a pipe goes plain text with
nothing shortened, one line per row, so that `grep` and `awk` work, and rich is not even loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as RichTable

GAP = "  "


@dataclass(frozen=True)
class Column:
    """One column of text."""

    title: str
    least: int | None = None
    """Characters that its text may be shortened to when the terminal is narrow; None: never."""
    drop: int = 0
    """When even that is too wide, columns are left out: 1 first, then 2, ...; 0 stays."""
    right: bool = False
    style: str = ""


def fit(columns: Sequence[Column], natural: Sequence[int], total: int) -> list[int]:
    """The width of each column on a terminal with `total` characters, 0 for one that is left out.

    `natural` is how wide they are when nothing is shortened. What can be shortened shares the
    room: the short ones stay whole.
    """

    def needed(index: int) -> int:
        least = columns[index].least
        return natural[index] if least is None else min(natural[index], least)

    shown = list(range(len(columns)))
    for index in sorted((i for i in shown if columns[i].drop), key=lambda i: columns[i].drop):
        if sum(map(needed, shown)) + len(GAP) * (len(shown) - 1) <= total:
            break
        shown.remove(index)
    widths = [needed(index) if index in shown else 0 for index in range(len(columns))]
    room = max(0, total - sum(widths) - len(GAP) * (len(shown) - 1))
    wishes = sorted((natural[index] - widths[index], index) for index in shown)
    for count, (wish, index) in enumerate(wishes):
        more = min(wish, room // (len(wishes) - count))
        widths[index] += more
        room -= more
    return widths


@dataclass(frozen=True)
class Table:
    """Rows of text; `styles` are rich styles of whole rows, "" for none."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    empty: str = ""
    """The sentence shown instead of a table without rows."""
    styles: Sequence[str] = ()

    def _natural(self, measure: Callable[[str], int]) -> list[int]:
        lines = [[column.title for column in self.columns], *self.rows]
        return [max(measure(line[i]) for line in lines) for i in range(len(self.columns))]

    def plain(self) -> str:
        """As text with aligned columns; the last one is as long as it is."""
        if not self.rows:
            return self.empty
        widths = self._natural(len)
        out = []
        for line in [[column.title.upper() for column in self.columns], *self.rows]:
            padded = [
                text.rjust(width) if column.right else text.ljust(width)
                for text, width, column in zip(line, widths, self.columns, strict=True)
            ]
            out.append(GAP.join(padded).rstrip())
        return "\n".join(out)

    def rich(self, total: int) -> RichTable | str:
        """For a terminal with `total` characters in a line."""
        if not self.rows:
            return self.empty
        from rich.box import SIMPLE_HEAD
        from rich.cells import cell_len
        from rich.table import Table as RichTable
        from rich.text import Text

        widths = fit(self.columns, self._natural(cell_len), total)
        made = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for column, width in zip(self.columns, widths, strict=True):
            if width:
                made.add_column(
                    column.title,
                    justify="right" if column.right else "left",
                    style=column.style or None,
                    no_wrap=True,
                    overflow="ellipsis",
                    min_width=width,
                    max_width=width,
                )
        for number, row in enumerate(self.rows):
            style = self.styles[number] if number < len(self.styles) else ""
            cells = (Text(text) for text, width in zip(row, widths, strict=True) if width)
            made.add_row(*cells, style=style or None)
        return made


@dataclass(frozen=True)
class Card:
    """Labels and texts of one thing, a line each; long texts are wrapped on a terminal."""

    rows: Sequence[tuple[str, str]]

    def plain(self) -> str:
        width = max((len(label) for label, _ in self.rows), default=0)
        return "\n".join(f"{label:<{width}}{GAP}{text}" for label, text in self.rows)

    def rich(self, total: int) -> RichTable:
        """For a terminal; rich wraps what is too long for it."""
        from rich.table import Table as RichTable
        from rich.text import Text

        made = RichTable(box=None, show_header=False, pad_edge=False)
        made.add_column(style="bold", no_wrap=True)
        made.add_column(overflow="fold")
        for label, text in self.rows:
            made.add_row(Text(label), Text(text))
        return made
