"""What a relay must still know after it was killed: one SQLite file in its own folder.

Requests until the kernel has them, outputs until the clients were sent them, both since the oldest
checkpoint that is kept, and how far each side came. Changes are collected and written in one
transaction by `flush`; the relay acknowledges and passes on nothing before. SQLite writes ahead
(WAL) without a sync: that survives every end of the process, and a machine that loses power loses
the very kernel whose messages these are.

Bounds of the file: requests that wait `tunnel.QUEUE_BYTES` per lane (then the clients are not read
any more), requests kept for a rollback `KEPT_REQUEST_BYTES`, outputs `KEPT_OUTPUT_BYTES` (of what
is kept for a rollback the oldest goes first; outputs are still counted), outputs for clients to
come `HELD_BYTES`, each plus one message.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import jupyter_wire
from .incarnations import Counts, History, Join, Positions, zeros
from .tunnel import LANES
from .undone import Answers, Said

KEPT_REQUEST_BYTES = 32 << 20
KEPT_OUTPUT_BYTES = 32 << 20
KEPT_OUTPUTS = 50_000

HELD_OUTPUTS = 9_000
HELD_BYTES = 32 << 20
"""Outputs kept while there is no client; no more than ZeroMQ takes for one that reads slowly."""

ANSWERED = 100_000
"""So many requests whose replies are not kept any more are remembered as answered."""

PRUNE_ROWS = 500

NEVER_AGAIN = ("interrupt_request", "shutdown_request")
"""Requests that are meant for the moment: once the kernel had one, no rollback repeats it."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS request (
    lane INTEGER NOT NULL, arrival INTEGER NOT NULL, kind TEXT NOT NULL, size INTEGER NOT NULL,
    parts BLOB NOT NULL, UNIQUE (lane, arrival)
);
CREATE TABLE IF NOT EXISTS output (
    id INTEGER PRIMARY KEY, lane INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    number INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL, parent TEXT NOT NULL,
    size INTEGER NOT NULL, parts BLOB NOT NULL, published INTEGER NOT NULL DEFAULT 0,
    rolled_back INTEGER
);
CREATE TABLE IF NOT EXISTS answered (request TEXT NOT NULL UNIQUE);
"""


def pack(parts: Sequence[bytes]) -> bytes:
    """The parts of a message as one: each behind its length."""
    return b"".join(piece for part in parts for piece in (len(part).to_bytes(8, "big"), part))


def unpack(data: bytes) -> list[bytes]:
    """The parts that `pack` joined."""
    parts, place = [], 0
    while place < len(data):
        end = place + 8 + int.from_bytes(data[place : place + 8], "big")
        parts.append(data[place + 8 : end])
        place = end
    return parts


@dataclass(frozen=True)
class Output:
    """An output that the relay has and whose clients have not been sent it yet."""

    id: int
    lane: str
    parts: list[bytes]
    size: int
    """Bytes on disk."""


class Full(Exception):
    """The disk takes nothing more; the message says why. Nothing was lost: `flush` is repeated."""


class Store:
    """The relay's memory. Not thread-safe; every method but `flush` and the readers only notes."""

    def __init__(self, path: str, held_bytes: int = HELD_BYTES) -> None:
        self.held_bytes = held_bytes
        old_mask = os.umask(0o077)
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.executescript(_SCHEMA)
        finally:
            os.umask(old_mask)
        self._read()

    def _read(self) -> None:
        self._notes: list[tuple[str, tuple[Any, ...]]] = []
        self._facts: dict[str, Any] = {
            name: json.loads(value) for name, value in self._db.execute("SELECT * FROM fact")
        }
        self._dirty: set[str] = set()
        old = self._facts.get("history")
        self.history = History.from_json(old) if old else History()
        self.arrived: Counts = {**zeros(), **self._facts.get("arrived", {})}
        """Arrival number of the newest request of each lane."""
        self.taken: Counts = {**zeros(), **self._facts.get("taken", {})}
        """Arrival number of the newest request that the kernel's side has."""
        self.gone: Counts = {**zeros(), **self._facts.get("gone", {})}
        """Requests up to this arrival are not kept any more."""
        floor = self._facts.get("floor")
        self.floor = Positions.from_json(floor) if floor else None
        """Where the oldest kept checkpoint stood; None: there is none."""
        row = self._db.execute("SELECT COALESCE(MAX(id), 0) FROM output").fetchone()
        self._last_id = int(row[0])
        row = self._db.execute("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM output").fetchone()
        self._outputs, self._output_bytes = int(row[0]), int(row[1])
        sql = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM output WHERE published = 2"
        row = self._db.execute(sql).fetchone()
        self.held_count, self._held_bytes = int(row[0]), int(row[1])
        self._kept_request_bytes = self._taken_bytes()

    def revert(self) -> None:
        """Forget everything noted since the last `flush`."""
        self._read()

    def _taken_bytes(self) -> int:
        total = 0
        for place, lane in enumerate(LANES):
            row = self._db.execute(
                "SELECT COALESCE(SUM(size), 0) FROM request WHERE lane = ? AND arrival <= ?",
                (place, self.taken[lane]),
            ).fetchone()
            total += int(row[0])
        return total

    # -- facts ------------------------------------------------------------------------------------

    def fact(self, name: str, default: Any = None) -> Any:
        """A stored fact (JSON)."""
        return self._facts.get(name, default)

    def set_fact(self, name: str, value: Any) -> None:
        """Note a fact."""
        if self._facts.get(name) != value or name not in self._facts:
            self._facts[name] = value
            self._dirty.add(name)

    def _state_changed(self) -> None:
        self._dirty.update(("history", "arrived", "taken", "gone", "floor"))

    # -- requests ---------------------------------------------------------------------------------

    def add_request(self, lane: str, kind: str, parts: Sequence[bytes]) -> int:
        """Note a client's request; returns its arrival number."""
        self.arrived[lane] += 1
        packed = pack(parts)
        self._notes.append(
            (
                "INSERT INTO request VALUES (?, ?, ?, ?, ?)",
                (LANES.index(lane), self.arrived[lane], kind, len(packed), packed),
            )
        )
        self._state_changed()
        return self.arrived[lane]

    def take_requests(self, lane: str, number: int) -> None:
        """The kernel's side has the requests up to `number` of the present incarnation."""
        arrival = number - self.history.now.shift[lane]
        if arrival <= self.taken[lane]:
            return
        self.taken[lane] = arrival
        if self.floor is None:
            self.gone[lane] = arrival
            self._notes.append(
                (
                    "DELETE FROM request WHERE lane = ? AND arrival <= ?",
                    (LANES.index(lane), arrival),
                )
            )
        self._state_changed()

    def waiting(self, lane: str) -> Iterator[list[bytes]]:
        """The requests of a lane that the kernel's side does not have, oldest first; one that is
        not kept any more, or must not be repeated, is empty. After `flush`."""
        rows = self._db.execute(
            "SELECT arrival, parts FROM request WHERE lane = ? AND arrival > ? ORDER BY arrival",
            (LANES.index(lane), self.taken[lane]),
        )
        following = self.taken[lane] + 1
        for arrival, parts in rows:
            for _ in range(following, arrival):
                yield []
            following = arrival + 1
            yield unpack(parts)
        for _ in range(following, self.arrived[lane] + 1):
            yield []

    # -- outputs ----------------------------------------------------------------------------------

    def add_output(
        self, lane: str, number: int, kind: str, parent: str, parts: Sequence[bytes]
    ) -> tuple[int, int]:
        """Note an output of the present incarnation; returns its id and size for `published`."""
        now = self.history.now
        self.history.receive(lane, number)
        self._last_id += 1
        packed = pack(parts)
        self._notes.append(
            (
                "INSERT INTO output (id, lane, incarnation, number, at, kind, parent, size, parts) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(self._last_id, LANES.index(lane), now.number, number, time.time()),
                    *(kind, parent, len(packed), packed),
                ),
            )
        )
        self._outputs += 1
        self._output_bytes += len(packed)
        self._state_changed()
        return self._last_id, len(packed)

    def published(self, last: int, lane: str, size: int, count: int, held: bool = False) -> None:
        """The clients were sent the outputs of a lane up to id `last`: `count` of `size` bytes.
        `held`: there was no client."""
        if held:
            sql = "UPDATE output SET published = 2 WHERE lane = ? AND id <= ? AND published = 0"
            self.held_count += count
            self._held_bytes += size
        elif self.floor is None:
            sql = "DELETE FROM output WHERE lane = ? AND id <= ? AND published = 0"
            self._outputs -= count
            self._output_bytes -= size
        else:
            sql = "UPDATE output SET published = 1 WHERE lane = ? AND id <= ? AND published = 0"
        self._notes.append((sql, (LANES.index(lane), last)))

    def unpublished(self) -> list[Output]:
        """Outputs that the clients were not sent, oldest first; for a relay that starts."""
        rows = self._db.execute(
            "SELECT id, lane, parts, size FROM output WHERE published = 0 AND rolled_back IS NULL "
            "ORDER BY id"
        )
        return [Output(row, LANES[lane], unpack(parts), size) for row, lane, parts, size in rows]

    def hold(self, output: Output) -> None:
        """This answer waits for its client, maybe for days: it is not noted as sent."""
        self._notes.append(("UPDATE output SET published = 2 WHERE id = ?", (output.id,)))
        self.held_count += 1
        self._held_bytes += output.size

    def held(self) -> list[tuple[str, list[bytes]]]:
        """(lane, output) of what came while there was no client, oldest first; after `flush`."""
        rows = self._db.execute(
            "SELECT lane, parts FROM output WHERE published = 2 AND rolled_back IS NULL ORDER BY id"
        )
        return [(LANES[lane], unpack(parts)) for lane, parts in rows]

    def give_back(self) -> None:
        """Clients were sent those."""
        self._let_go("published = 2", self.held_count, self._held_bytes)
        self.set_fact("dropped", 0)

    def _let_go(self, which: str, count: int, size: int) -> None:
        """These held outputs are none any more."""
        if self.floor is None:
            self._notes.append((f"DELETE FROM output WHERE {which}", ()))
            self._outputs -= count
            self._output_bytes -= size
        else:
            self._notes.append((f"UPDATE output SET published = 1 WHERE {which}", ()))
        self.held_count -= count
        self._held_bytes -= size

    # -- checkpoints and incarnations -------------------------------------------------------------

    def positions(self) -> Positions:
        """Where the connection stands now."""
        now = self.history.now
        requests = {lane: self.taken[lane] + now.shift[lane] for lane in LANES}
        return Positions(now.number, requests, dict(now.received))

    def keep_from(self, kept: Sequence[Positions]) -> None:
        """Keep the requests and outputs that a way back to any of the checkpoints `kept` needs
        (none: there is no checkpoint)."""
        self.floor = min(kept, key=lambda one: one.incarnation) if kept else None
        for place, lane in enumerate(LANES):
            arrivals = [self.taken[lane]]
            for one in kept:
                began = self.history.of(one.incarnation)
                # Of one that this relay never saw nothing is here.
                arrivals += [] if began is None else [one.requests[lane] - began.shift[lane]]
            arrival = min(arrivals)
            self.gone[lane] = max(self.gone[lane], arrival)
            self._notes.append(
                ("DELETE FROM request WHERE lane = ? AND arrival <= ?", (place, arrival))
            )
            if self.floor is None:
                self._notes.append(
                    ("DELETE FROM output WHERE lane = ? AND published = 1", (place,))
                )
            else:
                number = min(one.outputs[lane] for one in kept)
                self._notes.append(
                    (
                        "DELETE FROM output WHERE lane = ? AND published = 1 AND "
                        "incarnation <= ? AND number <= ?",
                        (place, self.floor.incarnation, number),
                    )
                )
        self._state_changed()
        self.flush()
        row = self._db.execute("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM output").fetchone()
        self._outputs, self._output_bytes = int(row[0]), int(row[1])

    def begun(self) -> None:
        """`history.begin` made a new incarnation. Writes at once."""
        self._state_changed()
        self.flush()

    def join(self, join: Join, answers: Answers | None = None) -> None:
        """The present incarnation begins as `join` says (`History.join` made it). Writes at
        once. `answers`: what clients are told whose requests get no reply any more, because
        somebody wanted an image from before them."""
        lost, again = 0, 0
        said: list[Said] = []
        now = self.history.now
        undo = self.fact("undo") == now.number
        chosen = ", ".join("?" * len(NEVER_AGAIN))
        dropped, kinds = (f"kind IN ({chosen})", NEVER_AGAIN) if not undo else ("TRUE", ())
        for place, lane in enumerate(LANES):
            after, before = join.after[lane], self.taken[lane]
            if after < before:
                if undo and answers is not None:
                    for request in self._without_reply(place, after, before):
                        said += answers.end(lane, request)
                missing = max(0, min(self.gone[lane], before) - max(0, after))
                repeated = (place, after, before, *kinds)
                row = self._db.execute(
                    "SELECT COUNT(*) FROM request WHERE lane = ? AND arrival > ? "
                    f"AND arrival <= ? AND {dropped}",
                    repeated,
                ).fetchone()
                lost += 0 if undo else missing
                again += before - max(0, after) - missing - int(row[0])
                self._notes.append(
                    (
                        "UPDATE request SET size = 0, parts = x'' WHERE lane = ? "
                        f"AND arrival > ? AND arrival <= ? AND {dropped}",
                        repeated,
                    )
                )
            self.taken[lane] = after
            if after > self.arrived[lane]:  # a kernel that begins with higher numbers
                self.arrived[lane] = self.gone[lane] = after
            self._notes.append(
                (
                    "UPDATE output SET rolled_back = ? WHERE lane = ? AND rolled_back IS NULL "
                    "AND incarnation != ? AND number > ?",
                    (now.number, place, now.number, join.kept[lane]),
                )
            )
        for lane, incarnation, end in join.line:
            self._notes.append(
                (
                    "UPDATE output SET rolled_back = ? WHERE lane = ? AND incarnation = ? "
                    "AND number > ? AND number <= ?",
                    (now.number, LANES.index(lane), incarnation, join.kept[lane], end),
                )
            )
        for one in said:
            self.add_output(one.lane, now.received[one.lane], one.kind, one.parent, one.parts)
        now.again, now.lost = again, lost
        self._state_changed()
        self.flush()

    def _without_reply(self, place: int, after: int, before: int) -> list[list[bytes]]:
        """The requests of a lane from `after` on up to `before` that expect a reply and whose
        clients were sent none; after `flush`."""
        replied = {
            request
            for (request,) in self._db.execute(
                "SELECT parent FROM output WHERE kind LIKE '%\\_reply' ESCAPE '\\' "
                "AND published = 1 UNION SELECT request FROM answered"
            )
        }
        rows = self._db.execute(
            "SELECT parts FROM request WHERE lane = ? AND arrival > ? AND arrival <= ? "
            "AND kind LIKE '%\\_request' ESCAPE '\\' AND size > 0 ORDER BY arrival",
            (place, after, before),
        )
        found = [unpack(parts) for (parts,) in rows]
        return [r for r in found if jupyter_wire.header(r).get("msg_id") not in replied]

    def rolled_back(self, incarnation: int, limit: int = 200) -> list[dict[str, Any]]:
        """The newest outputs that incarnation's begin rolled back: when, lane, type, request."""
        rows = self._db.execute(
            "SELECT at, lane, kind, parent FROM output WHERE rolled_back = ? "
            "ORDER BY id DESC LIMIT ?",
            (incarnation, limit),
        ).fetchall()
        return [
            {"at": at, "channel": LANES[lane], "type": kind, "request": parent}
            for at, lane, kind, parent in reversed(rows)
        ]

    # -- writing ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write everything noted, in one transaction. Raises `Full`: nothing was written and
        everything is still noted."""
        if not self._notes and not self._dirty:
            return
        self._prune()
        self._write()
        self._prune_held()
        if self._notes:
            self._write()

    def _write(self) -> None:
        facts = {
            "history": self.history.to_json(),
            "arrived": self.arrived,
            "taken": self.taken,
            "gone": self.gone,
            "floor": self.floor.to_json() if self.floor else None,
        }
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for sql, values in self._notes:
                self._db.execute(sql, values)
            for name in self._dirty:
                value = facts[name] if name in facts else self._facts[name]
                self._db.execute(
                    "INSERT INTO fact VALUES (?, ?) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    (name, json.dumps(value)),
                )
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise Full(str(error)) from None
        self._notes.clear()
        self._dirty.clear()

    def _prune_held(self) -> None:
        """Keep what waits for clients to come within its bounds; after it was written."""
        count, size, last = self.held_count, self._held_bytes, 0
        if count <= HELD_OUTPUTS and size <= self.held_bytes:
            return
        for last, bytes_ in self._db.execute(  # noqa: B007
            "SELECT id, size FROM output WHERE published = 2 ORDER BY id"
        ):
            count, size = count - 1, size - bytes_
            if count <= HELD_OUTPUTS and size <= self.held_bytes:
                break
        gone = self.held_count - count
        self._let_go(f"published = 2 AND id <= {int(last)}", gone, self._held_bytes - size)
        self.set_fact("dropped", self.fact("dropped", 0) + gone)

    def _prune(self) -> None:
        """Keep what is only kept for rollbacks within its bounds."""
        if self.floor is None:
            return
        if self._outputs > KEPT_OUTPUTS or self._output_bytes > KEPT_OUTPUT_BYTES:
            rows = self._db.execute(
                "SELECT id, size FROM output WHERE published = 1 ORDER BY id LIMIT ?", (PRUNE_ROWS,)
            ).fetchall()
            if rows:
                self._outputs -= len(rows)
                self._output_bytes -= sum(size for _, size in rows)
                upto = (rows[-1][0],)
                self._notes += [
                    (
                        "INSERT OR IGNORE INTO answered SELECT parent FROM output "
                        "WHERE kind LIKE '%\\_reply' ESCAPE '\\' AND published = 1 AND id <= ?",
                        upto,
                    ),
                    (
                        f"DELETE FROM answered WHERE rowid <= "
                        f"(SELECT COALESCE(MAX(rowid), 0) FROM answered) - {ANSWERED}",
                        (),
                    ),
                    ("DELETE FROM output WHERE published = 1 AND id <= ?", upto),
                ]

    def prune_requests(self) -> None:
        """Drop the oldest requests that are only kept for rollbacks, when they are too many; called
        now and then."""
        self._kept_request_bytes = self._taken_bytes()
        for place, lane in enumerate(LANES):
            while self._kept_request_bytes > KEPT_REQUEST_BYTES:
                rows = self._db.execute(
                    "SELECT arrival, size FROM request WHERE lane = ? AND arrival <= ? "
                    "ORDER BY arrival LIMIT ?",
                    (place, self.taken[lane], PRUNE_ROWS),
                ).fetchall()
                if not rows:
                    break
                self._kept_request_bytes -= sum(size for _, size in rows)
                self.gone[lane] = rows[-1][0]
                self._notes.append(
                    ("DELETE FROM request WHERE lane = ? AND arrival <= ?", (place, rows[-1][0]))
                )
                self._state_changed()
                self.flush()

    def close(self) -> None:
        self._db.close()
