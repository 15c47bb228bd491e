"""`record`: values that a run hands out while it goes on, such as a loss.

In a notebook a value is an output without a look, in the form that scrapbook reads and writes; the
runner of a batch session sees it come. Any other process of a batch session writes a line into the
file that `RECORDED` names, as shell scripts do. Elsewhere nobody is told, so code that records runs
everywhere.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from singularity_proxy.errors import BadRequest

RECORDED = "SINGULARITY_RECORDED"
"""The variable with the path of a file: each line NAME=VALUE is a value."""

MEDIA_TYPE = "application/scrapbook.scrap.{encoder}+json"
_ENCODERS = ("json", "text")

_shown: dict[str, str] = {}
"""Name -> the output that it has, by its display id."""


def record(name: str, value: Any) -> None:
    """Keep `value` under `name` with the session; a later value of the same name replaces it.

    Called by people's code. `value` is a number, a text, a truth value, None, or lists and mappings
    of them; what has ``item()``, as scalars of torch and NumPy have, is asked for it. Raises
    `BadRequest` for a value that is none of these, has more than 1024 characters as JSON, or has a
    name that is not 1 to 64 printable characters.
    """
    from singularity_scheduler.client.values import kept

    value = _asked(value)
    found, refused = kept({}, {str(name): value})
    if refused:
        raise BadRequest(f"{refused[str(name)]}; nothing was recorded", name=name)
    if not _display(str(name), found[str(name)]):
        _write(str(name), found[str(name)])


def recorded_in(data: Mapping[str, Any]) -> dict[str, Any]:
    """The values in an output's `data`; {} for outputs that are none."""
    found = {}
    for encoder in _ENCODERS:
        payload = data.get(MEDIA_TYPE.format(encoder=encoder))
        if isinstance(payload, Mapping) and isinstance(payload.get("name"), str):
            found[payload["name"]] = payload.get("data")
    return found


def line_of(text: str) -> tuple[str, Any] | None:
    """Name and value of a line of the file; None for one that is none."""
    name, equals, said = text.strip().partition("=")
    if not equals or not name.strip():
        return None
    try:
        return name.strip(), json.loads(said)
    except ValueError:
        return name.strip(), _word(said.strip())


def _word(said: str) -> Any:
    words = {"True": True, "False": False, "None": None, "nan": "NaN", "inf": "Infinity"}
    if said in words:
        return words[said]
    try:
        return float(said)
    except ValueError:
        return said


def _asked(value: Any) -> Any:
    item = getattr(value, "item", None)
    if isinstance(value, bool | int | float | str) or not callable(item):
        return value
    try:
        return item()
    except (TypeError, ValueError, RuntimeError) as error:  # more than one element
        raise BadRequest(f"this is no single value ({error}); nothing was recorded") from None


def _display(name: str, value: Any) -> bool:
    """Publish it as an output of the cell that runs; False where there is no kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return False
    from IPython.display import display, update_display

    encoder = "text" if isinstance(value, str) else "json"
    payload = {"name": name, "data": value, "encoder": encoder, "version": 1}
    data = {MEDIA_TYPE.format(encoder=encoder): payload}
    about = {"scrapbook": {"name": name, "data": True, "display": False}}
    # One output for each name and cell, however often a loop comes by.
    place = f"recorded-{shell.execution_count}-{name}"
    if _shown.get(name) == place:
        update_display(data, metadata=about, raw=True, display_id=place)
    else:
        display(data, metadata=about, raw=True, display_id=place)
        _shown[name] = place
    return True


def _write(name: str, value: Any) -> None:
    path = os.environ.get(RECORDED)
    if not path:
        return
    line = f"{name}={json.dumps(value)}\n"
    # One write of a short line to the end: lines of several processes do not mix.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)
