"""Runs on several nodes: sessions that are parts of one gang."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("part", sa.Text))


def downgrade() -> None:
    """To versions before this one parts are runs of their own."""
    op.drop_column("sessions", "part")
