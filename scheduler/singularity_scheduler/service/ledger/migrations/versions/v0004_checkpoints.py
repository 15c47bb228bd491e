"""Sessions that leave their node: several checkpoints each, incarnations, reports of losses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_OLD = ("checkpoint_id", "checkpoint_at", "checkpoint_bytes", "checkpoint_level")


def upgrade() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("session", sa.String(32), sa.ForeignKey("sessions.id"), primary_key=True),
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("level", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
        sa.Column("sent_bytes", sa.BigInteger, nullable=False),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("damaged", sa.Text, nullable=False),
        sa.Column("dropped", sa.Boolean, nullable=False),
    )
    op.create_index("checkpoints_dropped", "checkpoints", ["dropped"])
    op.execute(
        "INSERT INTO checkpoints (session, id, name, at, level, bytes, stored_bytes, sent_bytes, "
        "incarnation, reason, damaged, dropped) SELECT id, checkpoint_id, '', "
        "COALESCE(checkpoint_at, 0), COALESCE(checkpoint_level, 'device'), "
        "COALESCE(checkpoint_bytes, 0), 0, 0, 1, '', '', false FROM sessions "
        "WHERE checkpoint_id IS NOT NULL AND NOT ended"
    )
    for name in _OLD:
        op.drop_column("sessions", name)
    texts = ("origin", "target", "came_from", "restore_from", "source", "kernel_id")
    for name in texts:
        op.add_column(
            "sessions", sa.Column(name, sa.String(255), nullable=False, server_default="")
        )
    for name in ("called", "rollback", "undo", "unwind", "lost"):
        op.add_column(
            "sessions", sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())
        )
    op.add_column(
        "sessions", sa.Column("incarnation", sa.BigInteger, nullable=False, server_default="1")
    )
    op.add_column("sessions", sa.Column("leaving", sa.String(255)))
    op.add_column("sessions", sa.Column("loss", sa.Text))
    op.add_column("sessions", sa.Column("every_s", sa.Float))
    op.add_column("sessions", sa.Column("every_steps", sa.BigInteger))
    op.execute("UPDATE sessions SET origin = node WHERE process_state NOT IN ('queued')")


def downgrade() -> None:
    for name in ("every_steps", "every_s", "loss", "leaving", "incarnation"):
        op.drop_column("sessions", name)
    for name in ("lost", "unwind", "undo", "rollback", "called"):
        op.drop_column("sessions", name)
    for name in ("kernel_id", "source", "restore_from", "came_from", "target", "origin"):
        op.drop_column("sessions", name)
    op.add_column("sessions", sa.Column("checkpoint_id", sa.String(255)))
    op.add_column("sessions", sa.Column("checkpoint_at", sa.Float))
    op.add_column("sessions", sa.Column("checkpoint_bytes", sa.BigInteger))
    op.add_column("sessions", sa.Column("checkpoint_level", sa.String(32)))
    op.drop_index("checkpoints_dropped", "checkpoints")
    op.drop_table("checkpoints")
