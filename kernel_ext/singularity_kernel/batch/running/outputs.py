"""Outputs of a cell that are the same however the kernel's writes were cut into messages.

A kernel sends what was printed every fraction of a second, standard output and standard error
apart; how much comes in one message depends on the moment, and more so when the run is preempted.
Between two other outputs (a figure, a result, an error: kernels flush before those) all text of one
stream is one output here, standard output first.
"""

from __future__ import annotations

import re
from typing import Any

_ORDER = {"stdout": 0, "stderr": 1}

_OVERWRITTEN = re.compile(r"[^\r\n]*\r+(?=[^\r\n])")
"""What a progress bar has drawn and a carriage return has let it draw over."""


def add_stream(outputs: list[Any], new: Any) -> None:
    """Put the stream output `new` where it belongs in the cell's `outputs`."""
    start = len(outputs)
    while start and outputs[start - 1]["output_type"] == "stream":
        start -= 1
    for index in range(start, len(outputs)):
        here = outputs[index]
        if here["name"] == new["name"]:
            here["text"] += new["text"]
            return
        if _ORDER.get(here["name"], 2) > _ORDER.get(new["name"], 2):
            outputs.insert(index, new)
            return
    outputs.append(new)


def settle(outputs: list[Any]) -> None:
    """Leave of overwritten lines what a terminal would show in the end; once a cell is over."""
    for output in outputs:
        if output["output_type"] == "stream" and "\r" in output["text"]:
            output["text"] = _OVERWRITTEN.sub("", output["text"])
