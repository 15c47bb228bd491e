"""Sessions that ask for a part of a device."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "sessions", sa.Column("share_milli", sa.Integer, nullable=False, server_default="1000")
    )


def downgrade() -> None:
    op.drop_column("sessions", "share_milli")
