"""Which tiers are open to a user."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "user_tiers",
        sa.Column("user", sa.String(255), primary_key=True),
        sa.Column("tiers", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("user_tiers")
