"""Azure ML's sweep jobs (`type: sweep`), as the command jobs with a section `sweep` that they are.

What such a file says keeps its lines, and sentences about it keep its own words. Only what comes
out the same is taken: all combinations of listed values. `KEYS` is the table of the reference page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .errors import BadJob, nearest, shown
from .reading import Document, Node

Path = tuple[str, ...]

SWEEP = "sweep"
"""The type of such a file."""


@dataclass(frozen=True)
class Key:
    """A key of a sweep job. `becomes` is where a command job has it; () when it is refused."""

    path: Path
    becomes: Path = ()
    needed: bool = False
    refused: str = ""
    """Why, and what to do instead."""


def _same(*names: str) -> list[Key]:
    return [Key((name,), (name,)) for name in names]


def _trial(*names: str) -> list[Key]:
    return [Key(("trial", name), (name,)) for name in names]


KEYS: tuple[Key, ...] = (
    *_same("$schema", "name", "display_name", "experiment_name", "description", "tags"),
    Key(("trial", "command"), ("command",), needed=True),
    *_trial("code", "environment", "environment_variables", "distribution", "resources"),
    *_same("inputs", "outputs", "compute", "queue_settings", "resources", "retry_settings"),
    Key(("sampling_algorithm",), ("sweep", "sampling_algorithm"), needed=True),
    Key(("search_space",), ("sweep", "search_space"), needed=True),
    Key(("objective",), ("sweep", "objective")),
    Key(("limits", "max_total_trials"), ("sweep", "limits", "max_total_trials")),
    Key(("limits", "max_concurrent_trials"), ("sweep", "limits", "max_concurrent_trials")),
    Key(("limits", "trial_timeout"), ("limits", "timeout")),
    Key(("limits", "timeout"), ("sweep", "limits", "timeout")),
    Key(
        ("early_termination",),
        refused="runs are not compared with each other while they go on: leave it out, or write a "
        "command job with sweep.stop_when",
    ),
    Key(("identity",), refused="a run is its user's and has no other identity"),
)
"""Every key, in the order of the table."""

_BY_PATH: Mapping[Path, Key] = {key.path: key for key in KEYS}
_GROUPS = {key.path[0] for key in KEYS if len(key.path) > 1}
"""Keys whose value is a mapping that is taken apart."""


def as_command(document: Document) -> Document:
    """`document` as a command job when it is a sweep job, else as it is; raises `BadJob`."""
    kind = document.find("type")
    if kind is None or kind.value != SWEEP:
        return document
    found: dict[Path, tuple[Key, Node]] = {}
    for key, node in _said(document):
        if key.refused:
            raise document.bad(f"{_dotted(key.path)} is refused: {key.refused}", *key.path)
        if key.becomes in found:
            other = _dotted(found[key.becomes][0].path)
            what = f"{_dotted(key.path)} says {other} again: once is enough"
            raise BadJob(what, document.name, node.line)
        found[key.becomes] = key, node
    for key in KEYS:
        if key.needed and key.becomes not in found:
            raise document.bad(f"{_dotted(key.path)} is missing in a sweep", *key.path)
    root: dict[str, Node] = {"type": replace(kind, value="command")}
    for path, (_, node) in found.items():
        _put(root, path, node)
    return replace(
        document,
        root=replace(document.root, value=root),
        moved={path: key.path for path, (key, _) in found.items() if path != key.path},
    )


def _said(document: Document) -> list[tuple[Key, Node]]:
    """Each key that the file has, and its value."""
    found = []
    for name, node in document.root.value.items():
        if name == "type":
            continue
        if name not in _GROUPS:
            found.append((_known(document, (name,), node), node))
            continue
        if not isinstance(node.value, dict):
            about = "the job of one run is written out here" if name == "trial" else "with keys"
            raise document.bad(f"{name} must be a mapping, {about}, not {_of(node)}", name)
        for inner, part in node.value.items():
            found.append((_known(document, (name, inner), part), part))
    return found


def _known(document: Document, path: Path, node: Node) -> Key:
    if key := _BY_PATH.get(path):
        return key
    inside = path[:-1]
    known = list(
        dict.fromkeys(k.path[len(inside)] for k in KEYS if k.path[: len(inside)] == inside)
    )
    where = f"{inside[0]} of a sweep" if inside else "a sweep"
    what = f"{shown(path[-1])} is not known in {where}: {nearest(path[-1], known)}"
    raise BadJob(what, document.name, node.line)


def _put(root: dict[str, Node], path: Path, node: Node) -> None:
    """Put `node` at `path`, with mappings around it that are where it is."""
    if len(path) == 1:
        root[path[0]] = node
        return
    around = root.setdefault(path[0], Node({}, node.line))
    _put(around.value, path[1:], node)


def _of(node: Node) -> str:
    return "a list" if isinstance(node.value, list) else shown(node.value)


def _dotted(path: Path) -> str:
    return ".".join(path)
