"""Runs of notebooks, sessions that are held back, fingerprints of repeated requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("held_by", sa.String(255)))
    op.add_column("sessions", sa.Column("run", sa.Text))
    op.create_index("sessions_by_age", "sessions", ["created_at"])
    op.add_column(
        "commands", sa.Column("fingerprint", sa.String(64), nullable=False, server_default="")
    )


def downgrade() -> None:
    op.drop_column("commands", "fingerprint")
    op.drop_index("sessions_by_age", "sessions")
    op.drop_column("sessions", "run")
    op.drop_column("sessions", "held_by")
