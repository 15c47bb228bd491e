"""Where sessions may be, and in which cluster they are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_NAMES = ("cluster", "target_cluster")


def upgrade() -> None:
    for name in _NAMES:
        op.add_column(
            "sessions", sa.Column(name, sa.String(255), nullable=False, server_default="")
        )
    op.add_column("sessions", sa.Column("locations", sa.Text, nullable=False, server_default="[]"))


def downgrade() -> None:
    for name in ("locations", *_NAMES):
        op.drop_column("sessions", name)
