"""Reads YAML that anybody may have written into values that remember their lines.

Plain values as YAML 1.2 has them (``1e-3`` is a number, ``on`` is a text), no tags, no dates. Size,
depth and number of values are bounded, aliases count as what they stand for, and nothing recurses
deeper than `MAX_DEPTH`, so no file can take much time or memory.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]
from singularity_proxy.errors import NotFound

from .errors import BadJob, shown

MAX_BYTES = 256 << 10
"""Largest job file."""
MAX_VALUES = 5000
"""Most values in one, with aliases filled in."""
MAX_DEPTH = 32
"""Deepest nesting."""

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_WHOLE = re.compile(r"[-+]?[0-9]{1,300}")
_BASED = re.compile(r"0x[0-9a-fA-F]{1,100}|0o[0-7]{1,100}")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?")


@dataclass(frozen=True)
class Node:
    """A value of the file: of a mapping its `Node`s by key, of a list its `Node`s, else a plain
    value and its `text` as it was written."""

    value: Any
    line: int
    text: str = ""
    size: int = 1
    """Values in it, itself included."""
    depth: int = 1

    def plain(self) -> Any:
        """The value without its lines."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


@dataclass(frozen=True)
class Document:
    """A job file: its name as people gave it, its folder and what it says."""

    name: str
    folder: str
    root: Node
    moved: Mapping[tuple[str | int, ...], tuple[str, ...]] = field(default_factory=dict)
    """Where the file itself has what was put elsewhere: this path -> the file's own."""

    def words(self, path: Sequence[str | int]) -> str:
        """`path` as the file itself has it, for people."""
        here: tuple[str | int, ...] = tuple(path)
        for end in range(len(here), 0, -1):
            if own := self.moved.get(here[:end]):
                here = (*own, *here[end:])
                break
        return ".".join(map(str, here)) or "the job"

    def find(self, *path: str | int) -> Node | None:
        """The value at `path`; None when there is none."""
        node: Node | None = self.root
        for part in path:
            inside = node.value if node is not None else None
            if isinstance(inside, dict):
                node = inside.get(part)
            elif isinstance(inside, list) and isinstance(part, int) and part < len(inside):
                node = inside[part]
            else:
                return None
        return node

    def line(self, *path: str | int) -> int:
        """Where the value at `path` is, or the nearest thing around it."""
        while path:
            if node := self.find(*path):
                return node.line
            path = path[:-1]
        return self.root.line

    def bad(self, what: str, *path: str | int) -> BadJob:
        """The refusal `what` about the value at `path`."""
        return BadJob(what, self.name, self.line(*path))


def read(path: str) -> Document:
    """The job file at `path`; raises `NotFound` or `BadJob`."""
    try:
        kind = os.stat(path)
        if stat.S_ISDIR(kind.st_mode):
            raise NotFound(f"{path} is a folder and no job file; nothing was started")
        if not stat.S_ISREG(kind.st_mode):
            raise NotFound(f"{path} is no ordinary file; nothing was started")
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotFound(
            f"the job file {path} cannot be read ({error.strerror}); nothing was started"
        ) from None
    if len(raw) > MAX_BYTES:
        raise BadJob(
            f"the file has more than {MAX_BYTES >> 10} KiB, which no job file needs: put large "
            "values into a file of their own",
            path,
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadJob("this is no UTF-8 text: save the file as UTF-8", path, line) from None
    return parse(text, path)


def parse(text: str, name: str) -> Document:
    """The job in `text`, of a file called `name`; raises `BadJob`."""
    folder = os.path.dirname(os.path.abspath(name))
    return Document(name, folder, _Builder(text, name).document())


class _Builder:
    """Builds the nodes from the parser's events: the parser keeps its own stack and stops as soon
    as there are too many."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        self._events: Iterator[Any] = yaml.parse(text, Loader=yaml.SafeLoader)
        self._anchors: dict[str, Node] = {}
        self._count = 0

    def document(self) -> Node:
        try:
            found = [e for e in (next(self._events), next(self._events)) if _begins(e)]
            if not found:
                raise BadJob("the file is empty: it must describe a job", self._name, 1)
            root = self._node(next(self._events), 1)
            next(self._events)  # the document's end
            following = next(self._events)
        except yaml.YAMLError as error:
            raise self._broken(error) from None
        if _begins(following):
            raise self._bad("a second document begins here: one file describes one job", following)
        if not isinstance(root.value, dict):
            raise BadJob("a job file must be a mapping, such as 'type: notebook'", self._name, 1)
        return root

    def _node(self, event: Any, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._bad(f"values are nested deeper than {MAX_DEPTH} levels", event)
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event, depth)
        if event.tag is not None:
            raise self._bad(f"the tag {shown(event.tag)} is not taken: write plain values", event)
        self._counted(1, event)
        line = event.start_mark.line + 1
        if isinstance(event, yaml.MappingStartEvent):
            node = self._around(self._mapping(depth), line)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._around(self._list(depth), line)
        else:
            node = Node(self._scalar(event), line, event.value)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _around(self, inside: Any, line: int) -> Node:
        nodes = list(inside.values()) if isinstance(inside, dict) else inside
        size = 1 + sum(node.size for node in nodes)
        return Node(inside, line, size=size, depth=1 + max((n.depth for n in nodes), default=0))

    def _mapping(self, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._bad("a key must be a plain word", event)
            key = event.value
            if key in found:
                first = found[key].line
                raise self._bad(f"{shown(key)} is there twice, first in line {first}", event)
            node = self._node(next(self._events), depth + 1)
            # What is wrong with a value is looked for where its key is.
            line = event.start_mark.line + 1
            found[key] = Node(node.value, line, node.text, node.size, node.depth)
        return found

    def _list(self, depth: int) -> list[Node]:
        found = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(self._node(event, depth + 1))
        return found

    def _aliased(self, event: Any, depth: int) -> Node:
        node = self._anchors.get(event.anchor)
        if node is None:  # also when it stands inside of what it names
            raise self._bad(f"the alias *{event.anchor} stands for nothing before it", event)
        if depth + node.depth - 1 > MAX_DEPTH:
            raise self._bad(f"values are nested deeper than {MAX_DEPTH} levels", event)
        self._counted(node.size, event)
        return node

    def _counted(self, more: int, event: Any) -> None:
        self._count += more
        if self._count > MAX_VALUES:
            raise self._bad(f"there are more than {MAX_VALUES} values, aliases filled in", event)

    def _scalar(self, event: Any) -> Any:
        text = event.value
        if any("\ud800" <= c <= "\udfff" for c in text):  # by an escape; no file can hold it
            raise self._bad("half a character here cannot be stored", event)
        if not event.implicit[0]:  # quoted, or a block
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _WHOLE.fullmatch(text):
            return int(text)
        if _BASED.fullmatch(text):
            return int(text, 0)
        if _NUMBER.fullmatch(text):
            number = float(text)
            if number in (float("inf"), float("-inf")):
                raise self._bad(f"the number {shown(text)} is too large", event)
            return number
        return text

    def _bad(self, what: str, event: Any) -> BadJob:
        return BadJob(what, self._name, event.start_mark.line + 1)

    def _broken(self, error: Any) -> BadJob:
        """The sentence for what is no YAML."""
        mark = getattr(error, "problem_mark", None)
        if mark is None:  # a character that YAML does not have
            position = getattr(error, "position", 0)
            line = self._text.count("\n", 0, position) + 1
            return BadJob("a character here cannot stand in YAML", self._name, line)
        lines = self._text.splitlines()
        for number in (mark.line, mark.line - 1):  # the parser may notice it one line later
            if 0 <= number < len(lines) and "\t" in _indent(lines[number]):
                what = "a tab: YAML is indented with spaces"
                return BadJob(what, self._name, number + 1)
        what = " ".join(str(error.problem or "it cannot be read").split())
        if ("end of stream" in what or "<stream end>" in what) and error.context_mark is not None:
            what = "this is never closed"
            mark = error.context_mark
        return BadJob(f"this is not YAML ({what})", self._name, mark.line + 1)


def _begins(event: Any) -> bool:
    return isinstance(event, yaml.DocumentStartEvent)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
