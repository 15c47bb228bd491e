"""`PYTHONPATH=tests python -m sweep [OPTION...]`: the operators of torch, proxied beside native."""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

from . import known
from .run import figures, list_tasks, sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sweep", description=__doc__)
    parser.add_argument("--ops", default="", help="only operators whose name matches this")
    parser.add_argument("--dtypes", default="", help="only these, with commas")
    parser.add_argument("--samples", type=int, default=0, help="of each task; 0: all")
    parser.add_argument("--jobs", type=int, default=1, help="sessions at once")
    parser.add_argument(
        "--update", action="store_true", help="write the table of known differences anew"
    )
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    parser.add_argument(
        "--folder", type=Path, help="keep answers there; a sweep that was ended goes on with them"
    )
    options = parser.parse_args()
    if options.update and (options.ops or options.dtypes):
        parser.error("--update needs every operator: leave out --ops and --dtypes")
    wanted = set(options.dtypes.split(",")) if options.dtypes else None
    tasks = [
        (name, dtype)
        for name, dtype in list_tasks()
        if re.search(options.ops, name) and (wanted is None or dtype in wanted)
    ]
    results = sweep(tasks, options.samples, options.jobs, options.folder)
    report = {
        **figures(results),
        "tasks": {f"{name}/{dtype}": r for (name, dtype), r in sorted(results.items())},
    }
    if options.update:
        known.save(known.updated(known.load(), results, options.samples, version("torch")))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    for task, answer in report["tasks"].items():
        for index, wrong in answer["failures"][:3]:
            print(
                f"{task}[{index}]", *(f"{way}: {why}" for way, why in wrong.items()), sep="\n    "
            )
        if "broken" in answer:
            print(f"{task}: {answer['broken']}")
    print({k: v for k, v in report.items() if k != "tasks"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
