"""What reaches a client of a kernel that is suspended and resumed again and again."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from .figures import Figure
from .tools import see_support

BOUNDS = {"iopub_missing": 0.0, "iopub_doubled": 0.0}
A_SECOND = 500


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "iopub_messages": 1500 if quick else 3000,
        "iopub_generations": 3,
        "iopub_rounds": 1 if quick else 3,
    }


def measure_connection(size: dict[str, Any]) -> dict[str, Figure]:
    """A cell prints 500 messages a second; how many a client never gets, or gets again. Raises
    RuntimeError when their order, or what was asked while the kernel was away, is not right."""
    see_support()
    from support.kernel_moving import moving, stream_across

    missing, doubled = [], []
    for _ in range(size["iopub_rounds"]):
        with (
            tempfile.TemporaryDirectory(prefix="singularity-bench-") as images,
            moving(Path(images)) as kernel,
        ):
            streamed = stream_across(
                kernel,
                count=size["iopub_messages"],
                a_second=A_SECOND,
                generations=size["iopub_generations"],
            )
        if not (streamed.in_order and streamed.requests_in_order):
            raise RuntimeError("messages or requests came in another order than they were sent in")
        missing.append(float(streamed.missing))
        doubled.append(float(streamed.doubled))
    return {
        "iopub_missing": Figure(missing, quote=max),
        "iopub_doubled": Figure(doubled, quote=max),
    }
