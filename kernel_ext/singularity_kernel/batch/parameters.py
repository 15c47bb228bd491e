"""Whether the parameters of a run fit the notebook: asked before anything is sent, and once more by
the runner. Pure functions.

What a notebook takes is what its cell tagged ``parameters`` assigns. Without such a cell papermill
puts the parameters into a cell at the top, whatever they are called; so there is nothing to check.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .fates import BadRun
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
    """One parameter that the notebook takes. `kind` is a key of `_KINDS`, "" for anything."""

    kind: str = ""
    none: bool = False
    """None is a value too."""
    default: str = ""


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
    if found is None:
        return Taken(default=shown)
    kind = type(found).__name__
    return Taken(kind if kind in _KINDS else "", default=shown)


def _annotated(annotation: ast.expr, value: ast.expr | None) -> Taken:
    kind, none = _kind(annotation)
    default = _default(value)
    none = none or default.default == "None"
    return Taken(kind, none, default.default)


def _kind(annotation: ast.expr) -> tuple[str, bool]:
    """The key of `_KINDS` that an annotation stands for ("" for what is not known), and whether
    None is allowed."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return _kind(ast.parse(annotation.value, mode="eval").body)
        except SyntaxError:
            return "", True
    if isinstance(annotation, ast.Name | ast.Attribute):
        name = annotation.id if isinstance(annotation, ast.Name) else annotation.attr
        return (name, False) if name in _KINDS else ("", True)
    if isinstance(annotation, ast.Subscript):
        outer = annotation.value
        name = outer.id if isinstance(outer, ast.Name) else getattr(outer, "attr", "")
        if name == "Optional":
            return _kind(annotation.slice)[0], True
        return (name, False) if name in _KINDS else ("", True)
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        sides = [annotation.left, annotation.right]
        kept = [s for s in sides if not (isinstance(s, ast.Constant) and s.value is None)]
        if len(kept) == 1:
            return _kind(kept[0])[0], True
    return "", True


def _check_value(name: str, value: Any, taken: Taken) -> None:
    if not taken.kind or (value is None and taken.none):
        return
    allowed = _KINDS[taken.kind]
    # A truth value is an int to Python, but who passes one to a count has made a mistake.
    if type(value) in allowed:
        return
    default = f" (its default is {_short(taken.default)})" if taken.default else ""
    hint = f"; -r {name} {value} passes it as text" if allowed == (str,) else ""
    raise BadRun(
        f"parameter '{name}' takes {_word(allowed)}{default}, not {_short(repr(value))}; "
        f"nothing was started{hint}",
        parameter=name,
    )


def _word(kinds: tuple[type, ...]) -> str:
    return _SHOWN.get(kinds[0].__name__, kinds[0].__name__)


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
