"""The first ledger: sessions, leases, transitions, commands."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("tier", sa.String(16), nullable=False),
        sa.Column("virtual_devices", sa.Integer, nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("server", sa.String(255)),
        sa.Column("process_state", sa.String(16), nullable=False),
        sa.Column("device_state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("busy", sa.Boolean),
        sa.Column("idle_since", sa.Float),
        sa.Column("waiting_since", sa.Float),
        sa.Column("queue_order", sa.BigInteger, nullable=False),
        sa.Column("attach_order", sa.BigInteger, nullable=False),
        sa.Column("saved", sa.Boolean, nullable=False),
        sa.Column("wants", sa.Boolean, nullable=False),
        sa.Column("park_failed_at", sa.Float),
        sa.Column("asked", sa.Boolean, nullable=False),
        sa.Column("moving", sa.Boolean, nullable=False),
        sa.Column("preferred", sa.Text, nullable=False),
        sa.Column("stopped_by", sa.String(255)),
        sa.Column("exit_code", sa.Integer),
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.Column("grace_s", sa.Float, nullable=False),
        sa.Column("checkpoint_id", sa.String(255)),
        sa.Column("checkpoint_at", sa.Float),
        sa.Column("checkpoint_bytes", sa.BigInteger),
        sa.Column("checkpoint_level", sa.String(32)),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
    )
    op.create_index("sessions_by_user", "sessions", ["user", "created_at"])
    op.create_index("sessions_active", "sessions", ["ended"])
    op.create_table(
        "leases",
        sa.Column("node", sa.String(255), primary_key=True),
        sa.Column("device", sa.String(64), primary_key=True),
        sa.Column("session", sa.String(32), sa.ForeignKey("sessions.id"), nullable=False),
        sa.Column("virtual_device", sa.Integer, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("session", "virtual_device", name="leases_one_per_virtual_device"),
    )
    op.create_table(
        "transitions",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("session", sa.String(32), sa.ForeignKey("sessions.id"), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("process_state", sa.String(16), nullable=False),
        sa.Column("device_state", sa.String(16), nullable=False),
        sa.Column("word", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("rule", sa.String(64), nullable=False),
    )
    op.create_index("transitions_by_session", "transitions", ["session", "n"])
    op.create_table(
        "commands",
        sa.Column("user", sa.String(255), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("verb", sa.String(32), nullable=False),
        sa.Column("session", sa.String(32), sa.ForeignKey("sessions.id"), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_index("commands_by_age", "commands", ["at"])


def downgrade() -> None:
    for table in ("commands", "transitions", "leases", "sessions"):
        op.drop_table(table)
