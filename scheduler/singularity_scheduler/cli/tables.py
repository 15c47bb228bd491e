"""Tables: what is in them, apart from how they look.

On a terminal rich draws them, in colour and as wide as the window; to a pipe goes plain text with
nothing shortened, one line per row, so that `grep` and `awk` work, and rich is not even loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as RichTable

GAP = "  "


@dataclass(frozen=True)
class Column:
    """One column; `shrinks`: its text is shortened when the terminal is too narrow."""

    title: str
    shrinks: bool = False
    right: bool = False
    style: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of text; `styles` are rich styles of whole rows, "" for none."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    empty: str = ""
    """The sentence shown instead of a table without rows."""
    styles: Sequence[str] = ()

    def plain(self) -> str:
        """As text with aligned columns; the last one is as long as it is."""
        if not self.rows:
            return self.empty
        lines = [[column.title.upper() for column in self.columns], *map(list, self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        out = []
        for line in lines:
            padded = [
                text.rjust(width) if column.right else text.ljust(width)
                for text, width, column in zip(line, widths, self.columns, strict=True)
            ]
            out.append(GAP.join(padded).rstrip())
        return "\n".join(out)

    def rich(self) -> RichTable | str:
        """For a terminal."""
        if not self.rows:
            return self.empty
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        made = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
        for column in self.columns:
            made.add_column(
                column.title,
                justify="right" if column.right else "left",
                style=column.style or None,
                no_wrap=True,
                overflow="ellipsis",
                ratio=1 if column.shrinks else None,
                min_width=8 if column.shrinks else None,
            )
        made.expand = any(column.shrinks for column in self.columns)
        for number, row in enumerate(self.rows):
            style = self.styles[number] if number < len(self.styles) else ""
            made.add_row(*map(Text, row), style=style or None)
        return made


@dataclass(frozen=True)
class Card:
    """Labels and texts of one thing, a line each; long texts are wrapped on a terminal."""

    rows: Sequence[tuple[str, str]]

    def plain(self) -> str:
        width = max((len(label) for label, _ in self.rows), default=0)
        return "\n".join(f"{label:<{width}}{GAP}{text}" for label, text in self.rows)

    def rich(self) -> RichTable | str:
        from rich.table import Table as RichTable
        from rich.text import Text

        made = RichTable(box=None, show_header=False, pad_edge=False)
        made.add_column(style="bold", no_wrap=True)
        made.add_column(overflow="fold")
        for label, text in self.rows:
            made.add_row(Text(label), Text(text))
        return made
