"""Checkpoints that stay for a while although their session has ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "checkpoints", sa.Column("undo_until", sa.Float, nullable=False, server_default="0")
    )


def downgrade() -> None:
    """Versions before this one never delete what stays without a name: it is marked to go."""
    table, over = sa.table("checkpoints", *map(sa.column, ("dropped", "undo_until"))), sa.true()
    op.execute(table.update().where(table.c.undo_until > 0).values(dropped=over))
    op.drop_column("checkpoints", "undo_until")
