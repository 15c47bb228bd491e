"""Whether the parameters of a run fit the notebook: asked before anything is sent, and once more by
the runner. Pure functions.

What a notebook takes is what its cell tagged ``parameters`` assigns. Without such a cell papermill
puts the parameters into a cell at the top, whatever they are called; so there is nothing to check.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from singularity_kernel.batch.running.fates import BadRun

from .values import refuse_unsendable

_KINDS: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "list": (list,),
    "tuple": (list,),
    "set": (list,),
    "List": (list,),
    "Sequence": (list,),
    "dict": (dict,),
    "Dict": (dict,),
    "Mapping": (dict,),
}
"""What JSON may hold for each type of a default or annotation."""

_SHOWN = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "dict": "a mapping",
}


@dataclass(frozen=True)
class Taken:
    """One parameter that the notebook takes: anything when it has neither `kinds` nor `values`."""

    kinds: tuple[str, ...] = ()
    """Keys of `_KINDS`."""
    values: tuple[Any, ...] = ()
    """Values that it takes besides, by a ``Literal``."""
    none: bool = False
    """None is a value too."""
    default: str = ""

    def fits(self, value: Any) -> bool:
        """Whether the notebook takes `value`."""
        if not (self.kinds or self.values) or (value is None and self.none):
            return True
        # A truth value is an int to Python, but who passes one to a count has made a mistake.
        if any(type(value) in _KINDS[kind] for kind in self.kinds):
            return True
        return any(type(value) is type(one) and value == one for one in self.values)


def check(notebook: Any, parameters: Mapping[str, Any], language: str = "python") -> list[str]:
    """Notes for the user about `parameters` of a run of `notebook` (an nbformat node); raises
    `BadRun` for an unknown name or a value of the wrong type."""
    refuse_unsendable(dict(parameters))
    cell = tagged(notebook, "parameters")
    if not parameters:
        return []
    if cell is None:
        if tagged(notebook, "injected-parameters") is not None:
            return []
        return [
            "the notebook has no cell tagged 'parameters', so they are put in a cell at its top "
            "and nothing says whether it uses them"
        ]
    taken = taken_by(str(cell["source"]), language)
    if taken is None:
        return [f"parameters of a notebook in {language} are passed on without a check"]
    for name, value in parameters.items():
        if name not in taken:
            raise BadRun(_unknown(name, taken), parameter=name)
        _check_value(name, value, taken[name])
    return []


def tagged(notebook: Any, tag: str) -> Any | None:
    """The first cell of `notebook` with `tag`."""
    for cell in notebook["cells"]:
        if tag in cell.get("metadata", {}).get("tags", ()):
            return cell
    return None


def taken_by(source: str, language: str) -> dict[str, Taken] | None:
    """The parameters that a cell with `source` takes; None when that cannot be known."""
    if language.lower() not in ("python", "ipython"):
        return _as_papermill(source, language)
    try:
        body = ast.parse(source).body
    except SyntaxError:  # magics, or a mistake that the kernel will name
        return _as_papermill(source, "python")
    found: dict[str, Taken] = {}
    for statement in body:
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            return None
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = _annotated(statement.annotation, statement.value)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = _default(statement.value)
                elif isinstance(target, ast.Tuple | ast.List):
                    names = (n for n in ast.walk(target) if isinstance(n, ast.Name))
                    found.update({name.id: Taken() for name in names})
    return found


def _as_papermill(source: str, language: str) -> dict[str, Taken] | None:
    """Names as papermill's own inspection finds them, line by line; it knows few languages."""
    from papermill.exceptions import PapermillException  # type: ignore[import-untyped]
    from papermill.translators import papermill_translators  # type: ignore[import-untyped]

    try:
        translator = papermill_translators.find_translator(language, language)
        found = translator.inspect({"source": source})
    except (RuntimeError, PapermillException):  # a language that papermill cannot inspect
        return None
    taken = {}
    for parameter in found:
        taken[parameter.name] = Taken()
        if language == "python":
            with contextlib.suppress(SyntaxError):
                taken[parameter.name] = _default(ast.parse(parameter.default, mode="eval").body)
    return taken


def _default(value: ast.expr | None) -> Taken:
    if value is None:
        return Taken()
    shown = ast.unparse(value)
    try:
        found = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return Taken(default=shown)
    kind = type(found).__name__
    return Taken((kind,) if kind in _KINDS else (), default=shown)


def _annotated(annotation: ast.expr, value: ast.expr | None) -> Taken:
    default = _default(value)
    try:
        members = list(_members(annotation))
    except _AnyType:
        return Taken(default=default.default)
    return Taken(
        tuple(dict.fromkeys(m.name for m in members if isinstance(m, _Kind))),
        tuple(m for m in members if m is not None and not isinstance(m, _Kind)),
        None in members or default.default == "None",
        default.default,
    )


class _AnyType(Exception):
    """An annotation that anything may fit."""


@dataclass(frozen=True)
class _Kind:
    """A type in an annotation: a key of `_KINDS`."""

    name: str


def _members(annotation: ast.expr) -> Iterator[Any]:
    """What an annotation allows: `_Kind`s, and the values of Literal and None themselves; raises
    `_AnyType`."""
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        yield None
    elif isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            yield from _members(ast.parse(annotation.value, mode="eval").body)
        except SyntaxError:
            raise _AnyType from None
    elif isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        yield from _members(annotation.left)
        yield from _members(annotation.right)
    elif isinstance(annotation, ast.Subscript):
        yield from _subscripted(_last_name(annotation.value), annotation.slice)
    elif (name := _last_name(annotation)) in _KINDS:
        yield _Kind(name)
    else:
        raise _AnyType


def _subscripted(name: str, inside: ast.expr) -> Iterator[Any]:
    """The members of ``name[inside]``."""
    parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
    if name == "Optional":
        yield None
        yield from _members(inside)
    elif name == "Union":
        for part in parts:
            yield from _members(part)
    elif name in ("Annotated", "Final"):
        yield from _members(parts[0])
    elif name == "Literal":
        for part in parts:
            yield from _literal(part)
    elif name in _KINDS:
        yield _Kind(name)
    else:
        raise _AnyType


def _literal(part: ast.expr) -> Iterator[Any]:
    """The values of one part of a Literal, which may be a Literal too."""
    if isinstance(part, ast.Subscript) and _last_name(part.value) == "Literal":
        yield from _subscripted("Literal", part.slice)
        return
    try:
        yield ast.literal_eval(part)
    except ValueError:  # a member of an enumeration
        raise _AnyType from None


def _last_name(named: ast.expr) -> str:
    """``Literal`` of ``Literal`` and ``typing.Literal``; "" of what is no name."""
    return named.id if isinstance(named, ast.Name) else getattr(named, "attr", "")


def _check_value(name: str, value: Any, taken: Taken) -> None:
    if taken.fits(value):
        return
    default = f" (its default is {_short(taken.default)})" if taken.default else ""
    hint = f"; -r {name} {value} passes it as text" if taken.fits(str(value)) else ""
    raise BadRun(
        f"parameter '{name}' takes {_words(taken)}{default}, not {_short(repr(value))}; "
        f"nothing was started{hint}",
        parameter=name,
    )


def _words(taken: Taken) -> str:
    """What the notebook takes, for people: "a number, 'auto' or None"."""
    kinds = (_KINDS[kind][0].__name__ for kind in taken.kinds)
    words = [_SHOWN.get(kind, kind) for kind in kinds] + [repr(one) for one in taken.values]
    words = list(dict.fromkeys([*words, "None"] if taken.none else words))
    first = ", ".join(words[:-1])
    return f"{first} or {words[-1]}" if first else words[-1]


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unknown(name: str, taken: Mapping[str, Taken]) -> str:
    if not taken:
        return (
            f"the notebook's cell tagged 'parameters' assigns nothing, so it has no '{name}'; "
            "nothing was started"
        )
    near = difflib.get_close_matches(name, taken, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    known = _short(", ".join(taken))
    return f"the notebook has no parameter '{name}'; {hint}It has {known}; nothing was started"
