"""The report of a full run holds what a reader needs to judge it."""

from __future__ import annotations

import datetime
from typing import Literal

from _pytest.reports import TestReport
from support import report


def outcome(
    nodeid: str, result: Literal["passed", "failed", "skipped"], seconds: float, why: object = None
) -> TestReport:
    return TestReport(
        nodeid=nodeid,
        location=(nodeid, None, nodeid),
        keywords={},
        outcome=result,
        longrepr=why,  # type: ignore[arg-type]
        when="call",
        duration=seconds,
    )


def test_report_counts_times_and_reasons() -> None:
    stats = {
        "passed": [
            outcome("tests/unit/a.py::t1", "passed", 1.5),
            outcome("tests/e2e/b.py::t2", "passed", 9.0),
        ],
        "failed": [outcome("tests/unit/a.py::t3", "failed", 0.5)],
        "skipped": [
            outcome("tests/gpu/c.py::t4", "skipped", 0, ("c.py", 3, "Skipped: needs a GPU"))
        ],
        "rerun": [
            outcome("tests/e2e/b.py::t5", "failed", 1),
            outcome("tests/e2e/b.py::t2", "failed", 1),
            outcome("tests/e2e/b.py::t2", "failed", 1),
        ],
    }
    text = report.render(stats, 12.0, 7, "abc123", datetime.date(2026, 11, 21))
    assert text.startswith("# Full test run of 2026-11-21\n")
    assert "2 passed, 1 failed, 1 skipped in 12 s" in text
    assert "| tests/unit | 2 | 2.0 |" in text
    assert "- failed: `tests/unit/a.py::t3`" in text
    assert text.index("9.0 s `tests/e2e/b.py::t2`") < text.index("1.5 s `tests/unit/a.py::t1`")
    assert "- `tests/gpu/c.py::t4`: needs a GPU" in text
    assert "seed 7" in text
    assert "Second tries: 3\n\n- 2 `tests/e2e/b.py::t2`\n- 1 `tests/e2e/b.py::t5`\n" in text
    assert "| unit | 2 | 2.0 |" in text


def test_a_named_report_says_what_tests_measured() -> None:
    passed = outcome("tests/unit/a.py::t1", "passed", 1.5)
    passed.user_properties.append(("coverage checks", "109 of 123 pass"))
    day = datetime.date(2026, 11, 21)
    text = report.render({"passed": [passed]}, 2.0, 0, "abc123", day, "cuda-build")
    assert text.startswith("# Test run (cuda-build) of 2026-11-21\n")
    assert "| tests/unit | 1 | 1.5 |\n\n- coverage checks: 109 of 123 pass\n" in text
