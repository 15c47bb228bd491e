"""Who leads: of several services on one ledger, one at a time decides and commands.

The leadership is a row of the ledger with an epoch, which grows whenever it changes hands, and a
time until which it holds, by the database's own clock. Every transaction of the leader changes that
row under its own epoch, so a leader that was stopped for a while cannot write once another one has
taken over. What it sends without writing it must not send after `renew`'s time; and node agents
refuse the epoch of an older leader.

Runs in the ledger's thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from singularity_proxy.errors import NoSpace, SingularityError, Unavailable
from sqlalchemy import Connection, Float, literal_column, select, update

from singularity_scheduler.service.ledger.database import Database
from singularity_scheduler.service.ledger.tables import leadership as table

GRACE_S = 2.0
"""Who could not renew but has seen that nobody else leads goes on for so long. Less than what is
added to the leases of nodes before others get their devices (`Controller.lease_margin_s`)."""


class Deposed(Unavailable):
    """Another service leads by now."""


def boot_clock() -> float:
    """Seconds since boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Standing:
    """Who leads."""

    mine: bool
    epoch: int
    ledger: str
    """Identity of the ledger: epochs of different ledgers have nothing to do with each other."""
    name: str
    """Of the service that leads, for people."""
    until: float = 0.0
    """CLOCK_BOOTTIME until which nobody else takes it; for the leader itself."""


class Leadership:
    """`holder` is an identity that no two running services have, `name` is for people."""

    def __init__(self, database: Database, holder: str, name: str, lease_s: float) -> None:
        self._database = database
        self._holder, self._name, self._lease_s = holder, name[:255], lease_s
        self.epoch = 0
        self.until = 0.0

    def take(self) -> Standing:
        """Take it when it is free, has lapsed, or was this holder's before."""
        sent = boot_clock()
        with self._database.writing() as connection:
            c, now = table.c, _now(connection)
            row = connection.execute(select(table).with_for_update()).mappings().one()
            # Asked only now: the row may have been waited for.
            at = connection.execute(select(now)).scalar_one()
            if row["until"] > at and row["holder"] != self._holder:
                return Standing(False, row["epoch"], row["ledger"], row["name"])
            connection.execute(
                update(table)
                .where(c.id == 1)
                .values(
                    epoch=c.epoch + 1,
                    holder=self._holder,
                    name=self._name,
                    until=now + self._lease_s,
                )
            )
        self.epoch = row["epoch"] + 1
        self.until = sent + self._lease_s
        return Standing(True, self.epoch, row["ledger"], self._name, self.until)

    def check(self, connection: Connection) -> None:
        """Part of each transaction: it fails with `Deposed` unless this service still leads, and
        prolongs the leadership otherwise."""
        c = table.c
        found = connection.execute(
            update(table)
            .where(c.id == 1, c.epoch == self.epoch)
            .values(until=_now(connection) + self._lease_s)
        )
        if not found.rowcount:
            raise self._deposed(connection)

    def renew(self) -> float:
        """Prolong it; until when nobody else takes it. A database that can be read and not written
        (a full disk) is enough to know that nobody has taken it so far."""
        sent = boot_clock()
        try:
            with self._database.writing() as connection:
                self.check(connection)
        except Deposed:
            raise
        except SingularityError as trouble:
            if not isinstance(trouble, NoSpace | Unavailable):
                raise
            with self._database.reading() as connection:
                if connection.execute(select(table.c.epoch)).scalar_one() != self.epoch:
                    raise self._deposed(connection) from None
            self.until = max(self.until, sent + min(GRACE_S, self._lease_s))
        else:
            self.until = sent + self._lease_s
        return self.until

    def resign(self) -> None:
        """Let others take it now; nothing when it is another one's."""
        c = table.c
        with self._database.writing() as connection:
            connection.execute(
                update(table).where(c.id == 1, c.epoch == self.epoch).values(until=0.0)
            )

    def _deposed(self, connection: Connection) -> Deposed:
        name = connection.execute(select(table.c.name)).scalar_one()
        return Deposed(
            f"the scheduler service {name} leads by now and this one does not; nothing was "
            "changed: ask that one"
        )


def _now(connection: Connection) -> Any:
    """The database's own clock at the moment it is asked, in UNIX seconds."""
    if connection.dialect.name == "sqlite":
        return literal_column("((julianday('now') - 2440587.5) * 86400.0)", Float)
    return literal_column("extract(epoch FROM clock_timestamp())::double precision", Float)
