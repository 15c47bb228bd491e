"""The results of a group as CSV."""

from __future__ import annotations

import csv
import io

from singularity_scheduler.cli.runs.group_views import results_csv


def test_no_cell_of_the_csv_is_a_formula() -> None:
    """Whoever submitted the runs names their values, and somebody else may open the table."""
    result = {"number": 1, "session": "s1", "state": "completed", "exit_code": 0}
    found = {
        "values": ["lr"],
        "recorded": ["=1+1", "lr"],
        "best": None,
        "results": [{**result, "values": {"lr": -0.5}, "recorded": {"=1+1": "@x", "lr": [1]}}],
    }
    header, line = csv.reader(io.StringIO(results_csv(found)))
    assert header == ["number", "session", "state", "exit_code", "lr", "'=1+1", "recorded.lr"]
    assert line == ["1", "s1", "completed", "0", "-0.5", "'@x", "[1]"]
