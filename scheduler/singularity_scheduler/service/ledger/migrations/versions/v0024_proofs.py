"""Whether checkpoints come back stands with them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "checkpoints", sa.Column("proof_at", sa.Float(), server_default="0", nullable=False)
    )
    op.add_column(
        "checkpoints", sa.Column("proof_fault", sa.Text(), server_default="", nullable=False)
    )
