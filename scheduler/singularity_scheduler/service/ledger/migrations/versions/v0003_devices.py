"""Devices that are drained, and faults of devices that are acknowledged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "device_marks",
        sa.Column("node", sa.String(255), primary_key=True),
        sa.Column("uuid", sa.String(128), primary_key=True),
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("drained", sa.Boolean, nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("faults", sa.Text, nullable=False),
        sa.Column("ignored", sa.Text, nullable=False),
        sa.Column("lasting", sa.Boolean, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("device_marks")
