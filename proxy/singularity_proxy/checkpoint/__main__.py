"""For people: `python -m singularity_proxy.checkpoint FILE...` says what is in a ring's state
files, `python -m singularity_proxy.checkpoint new-key [ID]` makes a line for a key file."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import date

from singularity_proxy.checkpoint.device.state import JOURNAL_MAGIC, Journal, Snapshot
from singularity_proxy.checkpoint.keys import new_key
from singularity_proxy.errors import SingularityError


def describe(path: str) -> str:
    """A few lines about one file. Raises DamagedState, OSError."""
    with open(path, "rb") as file:
        is_journal = file.read(8) == JOURNAL_MAGIC
    if is_journal:
        with Journal(path) as journal:
            kinds = Counter(entry.kind for entry in journal)
            last = max((entry.seq for entry in journal), default=journal.base_seq)
            lines = [f"{path}: journal of records {journal.base_seq + 1} to {last}"]
            lines += [f"  {count:>9}  {kind}" for kind, count in kinds.most_common()]
            return "\n".join(lines)
    with Snapshot(path) as snapshot:
        sizes = snapshot.storage_bytes
        lines = [
            f"{path}: {snapshot.device_type} device state at record {snapshot.seq}",
            f"  {len(sizes)} storages, {sum(sizes.values())} bytes",
            f"  {len(snapshot.generators)} generators, {len(snapshot.events)} events, "
            f"{len(snapshot.operators)} operators",
        ]
        lines += [f"  failed earlier: {text}" for text in snapshot.failed.values()]
        if snapshot.pending_reply:
            lines.append(f"  the reply to record {snapshot.pending_reply[0]} is still to be sent")
        return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Describe every file named, or make a key; 1 when a file could not be read."""
    if arguments[:1] == ["new-key"]:
        print(new_key(arguments[1] if len(arguments) > 1 else f"{date.today():%Y-%m-%d}"))
        return 0
    status = 0
    for path in arguments:
        try:
            print(describe(path))
        except (SingularityError, OSError) as error:
            print(error, file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
