"""The table of known differences: tests/sweep/known.json, written by `python -m sweep --update`."""

from __future__ import annotations

import datetime
import json
import textwrap
from pathlib import Path
from typing import Any

from .run import Task, figures

FILE = Path(__file__).with_name("known.json")
TO_EXPLAIN = ""
"""The reason of a new difference; someone has to write one before the tests pass."""


def load() -> dict[str, Any]:
    if not FILE.exists():
        return {"operators": {}}
    with FILE.open() as f:
        known: dict[str, Any] = json.load(f)
    return known


def expected(known: dict[str, Any], task: Task) -> set[int]:
    """The samples of `task` that are known to differ."""
    return set(known["operators"].get(task[0], {}).get("samples", {}).get(task[1], []))


def may_vary(known: dict[str, Any], task: Task) -> bool:
    """Whether the listed samples of the operator differ at some runs only."""
    return bool(known["operators"].get(task[0], {}).get("varies", False))


def unexpected(known: dict[str, Any], results: dict[Task, dict[str, Any]]) -> list[str]:
    """One line for each sample that differs and is not listed, or is listed and equal."""
    lines = []
    for task, answer in sorted(results.items()):
        listed = expected(known, task)
        found = dict(answer["failures"])
        name = "/".join(task)
        lines += [f"{name}[{i}] differs: {found[i]}" for i in sorted(found.keys() - listed)]
        if "broken" in answer:
            lines.append(f"{name}: its samples cannot be made or compared: {answer['broken']}")
        if not may_vary(known, task):
            gone = {i for i in listed - found.keys() if i < answer["samples"]}
            lines += [f"{name}[{i}] is equal now: take it out of the table" for i in sorted(gone)]
    return lines


def updated(
    known: dict[str, Any], results: dict[Task, dict[str, Any]], limit: int, torch_version: str
) -> dict[str, Any]:
    """The table of a sweep over `limit` samples of each task (0: all). Reasons are kept."""
    operators: dict[str, Any] = {}
    for (name, dtype), answer in sorted(results.items()):
        if answer["failures"]:
            old = known.get("operators", {}).get(name, {})
            entry = operators.setdefault(
                name,
                {
                    "reason": old.get("reason", TO_EXPLAIN),
                    **({"varies": True} if old.get("varies") else {}),
                    "example": "",
                    "samples": {},
                },
            )
            entry["samples"][dtype] = [index for index, _ in answer["failures"]]
            if not entry["example"]:
                way, text = next(iter(answer["failures"][0][1].items()))
                entry["example"] = textwrap.shorten(f"{way}: {text}", 160, placeholder=" …")
    return {
        "date": datetime.date.today().isoformat(),
        "torch": torch_version.split("+", maxsplit=1)[0],
        "tasks": len(results),
        "samples_of_each": limit,
        **figures(results),
        "operators": operators,
    }


def save(known: dict[str, Any]) -> None:
    FILE.write_text(json.dumps(known, indent=1) + "\n")
