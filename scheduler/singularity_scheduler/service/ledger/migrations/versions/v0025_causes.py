"""What a checkpoint was made for stands with it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "checkpoints", sa.Column("cause", sa.String(32), server_default="", nullable=False)
    )
