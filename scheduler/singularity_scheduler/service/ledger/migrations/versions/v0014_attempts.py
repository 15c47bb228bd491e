"""Runs that go on by themselves when they were killed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("attempt", sa.Integer, nullable=False, server_default="1"))
    op.add_column(
        "sessions", sa.Column("retrying", sa.Boolean, nullable=False, server_default=sa.false())
    )
    op.add_column("sessions", sa.Column("started_at", sa.Float))


def downgrade() -> None:
    for name in ("started_at", "retrying", "attempt"):
        op.drop_column("sessions", name)
