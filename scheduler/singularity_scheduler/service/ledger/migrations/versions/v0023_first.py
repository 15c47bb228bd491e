"""The first ledger that is read: those of unreleased versions before it are refused."""

from __future__ import annotations

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    over = sa.column("ended").is_(True)
    op.create_table(
        "admin_log",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.Column("verb", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("n"),
    )
    op.create_index("admin_log_by_subject", "admin_log", ["subject", "n"], unique=False)
    op.create_table(
        "decisions",
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("leader", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("event", sa.String(length=64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("n"),
    )
    op.create_index("decisions_by_age", "decisions", ["at"], unique=False)
    op.create_table(
        "device_marks",
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("uuid", sa.String(length=128), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("drained", sa.Boolean(), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("reason_code", sa.String(length=64), server_default="", nullable=False),
        sa.Column("reason_args", sa.Text(), server_default="{}", nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("faults", sa.Text(), nullable=False),
        sa.Column("ignored", sa.Text(), nullable=False),
        sa.Column("lasting", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("node", "uuid"),
    )
    leadership = op.create_table(
        "leadership",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("ledger", sa.String(length=32), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("until", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "node_duties",
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("duty", sa.String(length=16), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("reason_code", sa.String(length=64), server_default="", nullable=False),
        sa.Column("reason_args", sa.Text(), server_default="{}", nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("deadline", sa.Float(), nullable=True),
        sa.Column("notice", sa.Boolean(), nullable=False),
        sa.Column("force", sa.Boolean(), nullable=False),
        sa.Column("instance", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("node"),
    )
    op.create_table(
        "parameters",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("user", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("tier", sa.String(length=16), nullable=False),
        sa.Column("virtual_devices", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("server", sa.String(length=255), nullable=True),
        sa.Column("process_state", sa.String(length=16), nullable=False),
        sa.Column("device_state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("reason_code", sa.String(length=64), server_default="", nullable=False),
        sa.Column("reason_args", sa.Text(), server_default="{}", nullable=False),
        sa.Column("reason_sum", sa.String(length=8), server_default="", nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("busy", sa.Boolean(), nullable=True),
        sa.Column("idle_since", sa.Float(), nullable=True),
        sa.Column("held_since", sa.Float(), nullable=True),
        sa.Column("waiting_since", sa.Float(), nullable=True),
        sa.Column("queue_order", sa.BigInteger(), nullable=False),
        sa.Column("attach_order", sa.BigInteger(), nullable=False),
        sa.Column("saved", sa.Boolean(), nullable=False),
        sa.Column("wants", sa.Boolean(), nullable=False),
        sa.Column("park_failed_at", sa.Float(), nullable=True),
        sa.Column("asked", sa.Boolean(), nullable=False),
        sa.Column("moving", sa.Boolean(), nullable=False),
        sa.Column("preferred", sa.Text(), nullable=False),
        sa.Column("stopped_by", sa.String(length=255), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.Column("grace_s", sa.Float(), nullable=False),
        sa.Column("held_by", sa.String(length=255), nullable=True),
        sa.Column("run", sa.Text(), nullable=True),
        sa.Column("origin", sa.String(length=255), server_default="", nullable=False),
        sa.Column("target", sa.String(length=255), server_default="", nullable=False),
        sa.Column("came_from", sa.String(length=255), server_default="", nullable=False),
        sa.Column("restore_from", sa.String(length=255), server_default="", nullable=False),
        sa.Column("source", sa.String(length=255), server_default="", nullable=False),
        sa.Column("kernel_id", sa.String(length=255), server_default="", nullable=False),
        sa.Column("called", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("rollback", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("undo", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("unwind", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("lost", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("leaving", sa.String(length=255), nullable=True),
        sa.Column("loss", sa.Text(), nullable=True),
        sa.Column("every_s", sa.Float(), nullable=True),
        sa.Column("every_steps", sa.BigInteger(), nullable=True),
        sa.Column("virtual_cluster", sa.String(length=255), server_default="", nullable=False),
        sa.Column("priority", sa.String(length=16), server_default="medium", nullable=False),
        sa.Column("cluster", sa.String(length=255), server_default="", nullable=False),
        sa.Column("target_cluster", sa.String(length=255), server_default="", nullable=False),
        sa.Column("locations", sa.Text(), server_default="[]", nullable=False),
        sa.Column("share", sa.Text(), server_default="{}", nullable=False),
        sa.Column("share_milli", sa.Integer(), server_default="1000", nullable=False),
        sa.Column("elastic", sa.Text(), server_default="", nullable=False),
        sa.Column("group", sa.String(length=32), server_default="", nullable=False),
        sa.Column("member", sa.Text(), nullable=True),
        sa.Column("part", sa.Text(), nullable=True),
        sa.Column("recorded", sa.Text(), server_default="{}", nullable=False),
        sa.Column("keep_until", sa.Float(), nullable=True),
        sa.Column("keep_from", sa.Float(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default="1", nullable=False),
        sa.Column("retrying", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("experiment", sa.String(length=255), server_default="", nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("sessions_active", "sessions", ["ended"], unique=False)
    op.create_index("sessions_by_age", "sessions", ["created_at"], unique=False)
    op.create_index(
        "sessions_by_end",
        "sessions",
        ["updated_at", "id"],
        unique=False,
        sqlite_where=over,
        postgresql_where=over,
    )
    op.create_index("sessions_by_group", "sessions", ["group"], unique=False)
    op.create_index("sessions_by_user", "sessions", ["user", "created_at"], unique=False)
    op.create_index(
        "sessions_by_user_and_end",
        "sessions",
        ["user", "updated_at", "id"],
        unique=False,
        sqlite_where=over,
        postgresql_where=over,
    )
    op.create_table(
        "snapshots",
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("n"),
    )
    op.create_table(
        "upgrades",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "user_tiers",
        sa.Column("user", sa.String(length=255), nullable=False),
        sa.Column("tiers", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("user"),
    )
    op.create_table(
        "virtual_clusters",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("quota_devices", sa.Integer(), nullable=False),
        sa.Column("may_borrow", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "checkpoint_log",
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sent_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session", "id"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("level", sa.String(length=32), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("damaged", sa.Text(), nullable=False),
        sa.Column("dropped", sa.Boolean(), nullable=False),
        sa.Column("set_id", sa.String(length=255), server_default="", nullable=False),
        sa.Column("undo_until", sa.Float(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(
            ["session"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session", "id"),
    )
    op.create_index("checkpoints_dropped", "checkpoints", ["dropped"], unique=False)
    op.create_table(
        "commands",
        sa.Column("user", sa.String(length=255), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("verb", sa.String(length=32), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["session"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("user", "key"),
    )
    op.create_index("commands_by_age", "commands", ["at"], unique=False)
    op.create_table(
        "leases",
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("virtual_device", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("node", "device"),
        sa.UniqueConstraint("session", "virtual_device", name="leases_one_per_virtual_device"),
    )
    op.create_table(
        "transitions",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("process_state", sa.String(length=16), nullable=False),
        sa.Column("device_state", sa.String(length=16), nullable=False),
        sa.Column("word", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("reason_code", sa.String(length=64), server_default="", nullable=False),
        sa.Column("reason_args", sa.Text(), server_default="{}", nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("n"),
    )
    op.create_index("transitions_by_session", "transitions", ["session", "n"], unique=False)
    row = {"id": 1, "ledger": uuid4().hex, "epoch": 0, "holder": "", "name": "", "until": 0.0}
    op.bulk_insert(leadership, [row])


def downgrade() -> None:
    op.drop_index("transitions_by_session", table_name="transitions")
    op.drop_table("transitions")
    op.drop_table("leases")
    op.drop_index("commands_by_age", table_name="commands")
    op.drop_table("commands")
    op.drop_index("checkpoints_dropped", table_name="checkpoints")
    op.drop_table("checkpoints")
    op.drop_table("checkpoint_log")
    op.drop_table("virtual_clusters")
    op.drop_table("user_tiers")
    op.drop_table("upgrades")
    op.drop_table("snapshots")
    op.drop_index("sessions_by_user_and_end", table_name="sessions")
    op.drop_index("sessions_by_user", table_name="sessions")
    op.drop_index("sessions_by_group", table_name="sessions")
    op.drop_index("sessions_by_end", table_name="sessions")
    op.drop_index("sessions_by_age", table_name="sessions")
    op.drop_index("sessions_active", table_name="sessions")
    op.drop_table("sessions")
    op.drop_table("parameters")
    op.drop_table("node_duties")
    op.drop_table("leadership")
    op.drop_table("device_marks")
    op.drop_index("decisions_by_age", table_name="decisions")
    op.drop_table("decisions")
    op.drop_index("admin_log_by_subject", table_name="admin_log")
    op.drop_table("admin_log")
