"""`./dev attack [--quick] [--json FILE] [NAME...]`: attack a running platform as its users could.

Each attack is a test (see `support.attacks`). One line for each says whether what
must hold held; the report has what was measured, on which machine. Exit code 1: something did not
hold.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from _pytest.reports import TestReport
from support.attacks import ELSEWHERE, LIST

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

NOT_ROOT = (
    "attacks are carried out as users with uids of their own, which only root can give them: run "
    "./dev attack as root"
)


class Told:
    """Prints a line for each attack as soon as it is over, and keeps what became of it."""

    def __init__(self, names: list[str], quick: bool) -> None:
        self._names, self._quick = names, quick
        self.found: dict[str, dict[str, Any]] = {}
        self._of: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = []
        for item in items:
            mark = item.get_closest_marker("attack")
            if mark is None or (self._names and mark.args[0] not in self._names):
                continue
            if self._quick and LIST[mark.args[0]].slow:
                continue
            self._of[item.nodeid] = mark.args[0]
            chosen.append(item)
        unknown = set(self._names) - set(LIST)
        if unknown:
            pytest.exit(f"there is no attack {sorted(unknown)[0]}; there are {', '.join(LIST)}", 4)
        items[:] = chosen

    def pytest_runtest_logreport(self, report: TestReport) -> None:
        name = self._of.get(report.nodeid)
        if name is None or not (report.when == "call" or report.failed or report.skipped):
            return
        one = LIST[name]
        outcome = "skipped" if report.skipped else "held" if report.passed else "FINDING"
        said = [str(value) for key, value in report.user_properties if key == "measured"]
        before = self.found.get(name, {})
        if before.get("outcome") == "FINDING":
            outcome = "FINDING"
        self.found[name] = {
            "tries": one.tries,
            "holds": one.holds,
            "outcome": outcome,
            "measured": "; ".join(dict.fromkeys([*before.get("said", ()), *said])),
            "said": [*before.get("said", ()), *said],
            "seconds": round(before.get("seconds", 0.0) + report.duration, 1),
        }
        print(f"  {outcome:<8} {name:<38} {'; '.join(said)}", flush=True)
        if report.failed:
            print(f"           tried: {one.tries}\n           must hold: {one.holds}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: TestReport) -> tuple[str, str, str] | None:
        """No letters between our lines."""
        return (report.outcome, "", "") if report.when == "call" or not report.passed else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev attack", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without those that take long")
    parser.add_argument("--json", metavar="FILE", help="where the report goes")
    parser.add_argument("name", nargs="*", help="only these attacks")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print(f"./dev attack: {NOT_ROOT}", file=sys.stderr)
        return 2
    told = Told(options.name, options.quick)
    words = ["-qq", "--no-header", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    places = [str(HERE), *(str(ROOT / file) for file in ELSEWHERE)]
    code = int(pytest.main([*words, *places], [told]))
    findings = [name for name, one in told.found.items() if one["outcome"] == "FINDING"]
    held = sum(one["outcome"] == "held" for one in told.found.values())
    print(f"{held} held, {len(findings)} findings of {len(told.found)} attacks")
    if code == 4 or not told.found:
        return 4
    if options.json or not options.name:
        path = write(told.found, options.quick, options.json)
        print(f"report: {path}")
    return 1 if findings or code else 0


def write(found: dict[str, dict[str, Any]], quick: bool, file: str | None) -> Path:
    """The report; returns where it is."""
    from benchmarks.__main__ import machine

    now = datetime.datetime.now(datetime.timezone.utc)
    kind = "attack-quick" if quick else "attack"
    path = Path(file or ROOT / "benchmarks" / "results" / f"{now:%Y-%m-%d}-{kind}.json")
    outcomes = [one["outcome"] for one in found.values()]
    report = {
        "benchmark": "attack",
        "quick": quick,
        "date": now.isoformat(timespec="seconds"),
        "machine": machine(),
        "attacks": len(outcomes),
        "findings": outcomes.count("FINDING"),
        "skipped": outcomes.count("skipped"),
        "list": {
            name: {key: value for key, value in one.items() if key != "said"}
            for name, one in found.items()
        },
    }
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
