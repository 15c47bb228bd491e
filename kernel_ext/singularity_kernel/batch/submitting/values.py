"""What people write as parameter values, read as papermill reads them. Pure functions.

``-p lr 0.1`` is a number, ``-p name test`` is text; `true`, `True`, `false`, `False` are truth
values and `None` is None. papermill knows only the capitalised words; a YAML file knows both.
"""

from __future__ import annotations

import json
import keyword
from typing import Any

from singularity_kernel.batch.running.fates import BadRun

_WORDS: dict[str, bool | None] = {
    "True": True,
    "true": True,
    "False": False,
    "false": False,
    "None": None,
}


def value_of(text: str) -> Any:
    """The value that `text` stands for after ``-p NAME``."""
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def from_yaml(text: str, where: str) -> dict[str, Any]:
    """The parameters in YAML (or JSON) `text`; `where` names it in the refusal. Times stay text,
    as papermill has them."""
    import yaml  # type: ignore[import-untyped]
    from papermill.iorw import NoDatesSafeLoader  # type: ignore[import-untyped]

    try:
        found = yaml.load(text, Loader=NoDatesSafeLoader)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise BadRun(
            f"{where} is not YAML{line}; nothing was started: write 'NAME: VALUE'"
        ) from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadRun(f"{where} holds no parameters; nothing was started: write 'NAME: VALUE'")
    return {str(name): value for name, value in found.items()}


def refuse_unsendable(parameters: dict[str, Any]) -> None:
    """`BadRun` for a name that no cell can assign and for a value that JSON cannot hold."""
    for name, value in parameters.items():
        if not name.isidentifier() or keyword.iskeyword(name):
            raise BadRun(
                f"'{name}' cannot be the name of a parameter: a name has letters, digits and '_', "
                "begins with no digit and is no word of Python; nothing was started",
                parameter=name,
            )
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise BadRun(
                f"the value of parameter '{name}' cannot be sent ({value!r}); nothing was started: "
                "give it as text with -r and convert it in the notebook",
                parameter=name,
            ) from None
