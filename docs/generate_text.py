"""Pieces of Markdown for docs/generate.py."""

from __future__ import annotations

import inspect


def cell(text: object) -> str:
    """`text` as the content of a Markdown table cell."""
    return " ".join(str(text).split()).replace("``", "`").replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell(c) for c in line) + " |" for line in lines) + "\n"


def first_paragraph(doc: str | None) -> str:
    return inspect.cleandoc(doc or "").split("\n\n")[0]
