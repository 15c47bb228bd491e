"""Checkpoints of runs on several nodes: which of them belong together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "checkpoints", sa.Column("set_id", sa.String(255), nullable=False, server_default="")
    )


def downgrade() -> None:
    """To versions before this one a run on several nodes has nothing to go back to."""
    op.drop_column("checkpoints", "set_id")
