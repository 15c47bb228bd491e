"""`PYTHONPATH=tests:. python -m chaos`: the chaos campaign; `./dev chaos` is how people start
it."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from rich.console import Console

from . import disk, report, schedule
from .campaign import Campaign, Result


def main(argv: list[str] | None = None) -> int:
    """Run the campaigns; 0 when nothing was violated, 1 when something was, 2 when it cannot
    run."""
    parser = argparse.ArgumentParser(
        prog="./dev chaos", description="Break a platform, see what holds."
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="of each seed (default 20)")
    parser.add_argument(
        "--seed",
        type=int,
        action="append",
        help="the schedule; several times: one after the other (default 1)",
    )
    parser.add_argument("--users", type=int, default=3, help="how many, from 1 on (default 3)")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument("--show", action="store_true", help="print the schedule, do nothing")
    parser.add_argument("--keep", type=Path, default=Path(".dev/chaos"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--only", default="", help="only faults and verbs whose names begin so, with commas between"
    )
    options = parser.parse_args(argv)
    if options.users < 1 or options.minutes <= 0:
        parser.error("--users and --minutes must be more than 0")
    seeds = options.seed or [1]
    decks = [
        {n: c for n, c in deck.items() if n.startswith(tuple(options.only.split(",")))}
        for deck in (schedule.FAULTS, schedule.VERBS)
    ]
    if options.show:
        for step in schedule.draw(seeds[0], options.minutes * 60.0, *decks):
            print(f"{step.at:8.2f}  {step}")
        return 0
    if why := cannot_run():
        print(f"./dev chaos: {why}", file=sys.stderr)
        return 2
    disk.leave_mounts()
    console, results = Console(stderr=True, highlight=False, soft_wrap=True), []
    for seed in seeds:
        console.print(f"seed {seed}: {options.minutes:g} minutes, {options.users} users")
        campaign = Campaign(
            seed,
            options.minutes * 60.0,
            options.users,
            say=lambda line: console.print(line, markup=False),
            faults=decks[0] if options.only else None,
            verbs=decks[1] if options.only else None,
        )
        keep = options.keep / f"seed-{seed}"
        try:
            result = asyncio.run(_until_stopped(campaign, keep))
        except (asyncio.CancelledError, KeyboardInterrupt):
            print(f"stopped in seed {seed}; there is no report", file=sys.stderr)
            return 1
        results.append(result)
        tell(console, campaign, result)
    whole = report.render(results, options.minutes, options.users)
    console.print(report.table(results))
    for key, value in whole.items():
        if not isinstance(value, dict | list):
            print(f"{key}: {value}")
    if options.json:
        report.write(whole, options.json)
        print(f"written: {options.json}")
    return 1 if whole["violations"] or any(r.violations for r in results) else 0


async def _until_stopped(campaign: Campaign, keep: Path) -> Result:
    """Run a campaign; SIGTERM ends it as Ctrl-C does, and nothing of it stays."""
    task = asyncio.ensure_future(campaign.run(keep))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def cannot_run() -> str:
    """Why this machine cannot have a campaign; "" when it can."""
    if os.geteuid() != 0:
        return (
            "it needs root: its users have uids of their own, and its store has a disk of its own."
        )
    from singularity_proxy.capsule.images import criu

    found = criu.probe()
    return "" if found.ok else f"it needs process images, and {found.reason}."


def tell(console: Console, campaign: Campaign, result: Result) -> None:
    """The timeline around each violation, and where the logs are."""
    for violation in result.violations[:10]:
        console.print(f"\n-- around {violation}", markup=False)
        for entry in campaign.timeline.around(violation.at):
            console.print(str(entry), markup=False)
    if result.kept is not None:
        console.print(f"seed {result.seed} has violations; its logs are in {result.kept}")
        console.print(f"replay it: ./dev chaos --seed {result.seed}")


if __name__ == "__main__":
    sys.exit(main())
