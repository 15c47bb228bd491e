"""The ledger's tables (SQLAlchemy Core). The migrations below `migrations/` create them.

No launch environment, argument list, connection key or token is stored: they are secrets, and the
node agent is the only one that needs them. The notebook, parameters and variables of a batch run
are: what was accepted is run, also after a restart.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, get_args

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    true,
)

from singularity_scheduler.model.fields import SessionField
from singularity_scheduler.model.session import FIELDS

metadata = MetaData()

# SQLite numbers rows by itself only in an INTEGER column; PostgreSQL's INTEGER is too small.
_Serial = BigInteger().with_variant(Integer, "sqlite")


def _column_of(each: SessionField) -> Column[Any]:
    """The column of a field that is declared."""
    default = each.default
    if default is None:
        number = BigInteger if each.fact.grows else Integer
        return Column(each.name, Float if float in get_args(each.type) else number)
    if isinstance(default, tuple):
        return Column(each.name, Text, nullable=False, server_default=json.dumps(default))
    if isinstance(default, bool):
        return Column(
            each.name, Boolean, nullable=False, server_default=true() if default else false()
        )
    if isinstance(default, int):
        number = BigInteger if each.fact.grows else Integer
        return Column(each.name, number, nullable=False, server_default=str(default))
    text = default.value if isinstance(default, Enum) else default
    return Column(each.name, String(each.fact.length), nullable=False, server_default=text)


sessions = Table(
    "sessions",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("user", String(255), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("name", String(255), nullable=False),
    Column("tier", String(16), nullable=False),
    Column("virtual_devices", Integer, nullable=False),
    Column("node", String(255), nullable=False),
    Column("server", String(255)),
    Column("process_state", String(16), nullable=False),
    Column("device_state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("reason_code", String(64), nullable=False, server_default=""),
    Column("reason_args", Text, nullable=False, server_default="{}"),
    Column("reason_sum", String(8), nullable=False, server_default=""),
    Column("seq", BigInteger, nullable=False),
    Column("busy", Boolean),
    Column("idle_since", Float),
    Column("held_since", Float),
    Column("waiting_since", Float),
    Column("queue_order", BigInteger, nullable=False),
    Column("attach_order", BigInteger, nullable=False),
    Column("saved", Boolean, nullable=False),
    Column("wants", Boolean, nullable=False),
    Column("park_failed_at", Float),
    Column("asked", Boolean, nullable=False),
    Column("moving", Boolean, nullable=False),
    Column("preferred", Text, nullable=False),
    Column("stopped_by", String(255)),
    Column("ended", Boolean, nullable=False),
    Column("grace_s", Float, nullable=False),
    Column("held_by", String(255)),
    Column("run", Text),
    Column("origin", String(255), nullable=False, server_default=""),
    Column("target", String(255), nullable=False, server_default=""),
    Column("came_from", String(255), nullable=False, server_default=""),
    Column("restore_from", String(255), nullable=False, server_default=""),
    Column("rollback", Boolean, nullable=False, server_default=false()),
    Column("undo", Boolean, nullable=False, server_default=false()),
    Column("unwind", Boolean, nullable=False, server_default=false()),
    Column("lost", Boolean, nullable=False, server_default=false()),
    Column("leaving", String(255)),
    Column("loss", Text),
    Column("cluster", String(255), nullable=False, server_default=""),
    Column("target_cluster", String(255), nullable=False, server_default=""),
    Column("share", Text, nullable=False, server_default="{}"),
    Column("elastic", Text, nullable=False, server_default=""),
    Column("group", String(32), nullable=False, server_default=""),
    Column("member", Text),
    Column("part", Text),
    Column("recorded", Text, nullable=False, server_default="{}"),
    Column("keep_until", Float),
    Column("keep_from", Float),
    Column("retrying", Boolean, nullable=False, server_default=false()),
    Column("started_at", Float),
    Column("experiment", String(255), nullable=False, server_default=""),
    *map(_column_of, FIELDS),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Index("sessions_by_user", "user", "created_at"),
    Index("sessions_active", "ended"),
    Index("sessions_by_age", "created_at"),
    Index("sessions_by_group", "group"),
)

_over = sessions.c.ended.is_(True)
# Only of those that have ended, so that the others are changed without touching them.
Index(
    "sessions_by_end",
    sessions.c.updated_at,
    sessions.c.id,
    sqlite_where=_over,
    postgresql_where=_over,
)
Index(
    "sessions_by_user_and_end",
    sessions.c.user,
    sessions.c.updated_at,
    sessions.c.id,
    sqlite_where=_over,
    postgresql_where=_over,
)

leases = Table(
    "leases",
    metadata,
    Column("node", String(255), primary_key=True),
    Column("device", String(64), primary_key=True),
    Column("session", String(32), ForeignKey("sessions.id"), nullable=False),
    Column("virtual_device", Integer, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    UniqueConstraint("session", "virtual_device", name="leases_one_per_virtual_device"),
)
"""The primary key is the promise that a device is leased once, kept by the database itself."""

device_marks = Table(
    "device_marks",
    metadata,
    Column("node", String(255), primary_key=True),
    Column("uuid", String(128), primary_key=True),
    Column("device", String(64), nullable=False),
    Column("drained", Boolean, nullable=False),
    Column("by", String(255), nullable=False),
    Column("reason", Text, nullable=False),
    Column("reason_code", String(64), nullable=False, server_default=""),
    Column("reason_args", Text, nullable=False, server_default="{}"),
    Column("at", Float, nullable=False),
    Column("faults", Text, nullable=False),
    Column("ignored", Text, nullable=False),
    Column("lasting", Boolean, nullable=False),
)
"""Devices that were drained or returned, with the faults that are acknowledged (JSON lists). `uuid`
is the card, `device` the number it had last."""

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("session", String(32), ForeignKey("sessions.id"), primary_key=True),
    Column("id", String(255), primary_key=True),
    Column("name", String(255), nullable=False),
    Column("at", Float, nullable=False),
    Column("level", String(32), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("stored_bytes", BigInteger, nullable=False),
    Column("sent_bytes", BigInteger, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("damaged", Text, nullable=False),
    Column("dropped", Boolean, nullable=False),
    Column("set_id", String(255), nullable=False, server_default=""),
    Column("undo_until", Float, nullable=False, server_default="0"),
    Column("proof_at", Float, nullable=False, server_default="0"),
    Column("proof_fault", Text, nullable=False, server_default=""),
    Column("cause", String(32), nullable=False, server_default=""),
    Index("checkpoints_dropped", "dropped"),
)
"""What the store has of each session. A dropped one is deleted there as soon as a node can do it;
until then its row stays, also when its session is long over. Those of one `set_id` were stored
together, by the parts of a gang. After the end of its session one without a name stays until
`undo_until`."""

checkpoint_log = Table(
    "checkpoint_log",
    metadata,
    Column("session", String(32), ForeignKey("sessions.id"), primary_key=True),
    Column("id", String(255), primary_key=True),
    Column("at", Float, nullable=False),
    Column("stored_bytes", BigInteger, nullable=False),
    Column("sent_bytes", BigInteger, nullable=False),
)
"""What was ever stored of each session, for accounting: it stays when the checkpoint is deleted."""

transitions = Table(
    "transitions",
    metadata,
    Column("n", _Serial, primary_key=True, autoincrement=True),
    Column("session", String(32), ForeignKey("sessions.id"), nullable=False),
    Column("at", Float, nullable=False),
    Column("process_state", String(16), nullable=False),
    Column("device_state", String(16), nullable=False),
    Column("word", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("reason_code", String(64), nullable=False, server_default=""),
    Column("reason_args", Text, nullable=False, server_default="{}"),
    Column("rule", String(64), nullable=False),
    Column("devices", Integer),
    Index("transitions_by_session", "session", "n"),
)

commands = Table(
    "commands",
    metadata,
    Column("user", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("verb", String(32), nullable=False),
    Column("session", String(32), ForeignKey("sessions.id"), nullable=False),
    Column("at", Float, nullable=False),
    Column("fingerprint", String(64), nullable=False, server_default=""),
    Index("commands_by_age", "at"),
)
"""Requests that carried an idempotency key: which session each was about."""

parameters = Table(
    "parameters",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""Parameters of the policy that an administrator set (JSON); the others are as configured."""

node_duties = Table(
    "node_duties",
    metadata,
    Column("node", String(255), primary_key=True),
    Column("duty", String(16), nullable=False),
    Column("by", String(255), nullable=False),
    Column("reason", Text, nullable=False),
    Column("reason_code", String(64), nullable=False, server_default=""),
    Column("reason_args", Text, nullable=False, server_default="{}"),
    Column("at", Float, nullable=False),
    Column("deadline", Float),
    Column("notice", Boolean, nullable=False),
    Column("force", Boolean, nullable=False),
    Column("instance", String(64), nullable=False),
)
"""Nodes that were ever cordoned, drained or opened again."""

upgrades = Table(
    "upgrades",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("document", Text, nullable=False),
)
"""The newest upgrade of nodes (JSON); one row at most."""

virtual_clusters = Table(
    "virtual_clusters",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("quota_devices", Integer, nullable=False),
    Column("may_borrow", Boolean, nullable=False),
)

user_tiers = Table(
    "user_tiers",
    metadata,
    Column("user", String(255), primary_key=True),
    Column("tiers", Text, nullable=False),
)
"""Users to whom not all tiers are open (a JSON list of those that are)."""

admin_log = Table(
    "admin_log",
    metadata,
    Column("n", _Serial, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    Column("by", String(255), nullable=False),
    Column("verb", String(32), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("before", Text, nullable=False),
    Column("after", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("rule", String(64), nullable=False),
    Index("admin_log_by_subject", "subject", "n"),
)
"""Who changed what, from what (JSON) to what."""

decisions = Table(
    "decisions",
    metadata,
    Column("n", BigInteger, primary_key=True, autoincrement=False),
    Column("leader", BigInteger, nullable=False),
    Column("at", Float, nullable=False),
    Column("event", String(64), nullable=False),
    Column("body", Text, nullable=False),
    Index("decisions_by_age", "at"),
)
"""Every decision, without gaps: what it changed (`record`), on which event, under which leader. The
other tables are what these lines amount to, written in the same transaction."""

snapshots = Table(
    "snapshots",
    metadata,
    Column("n", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""Everything active after decision `n`: from there on the lines of `decisions` rebuild it."""

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("ledger", String(32), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("until", Float, nullable=False),
)
"""One row: which service leads, and until when by the database's own clock. Each transaction of the
leader changes it, so none of them succeeds once another service has taken it over."""
