"""Reasons as codes with arguments, beside their sentences; "": written before there were any."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("sessions", "transitions"):
        code = sa.Column("reason_code", sa.String(64), nullable=False, server_default="")
        args = sa.Column("reason_args", sa.Text, nullable=False, server_default="{}")
        op.add_column(table, code)
        op.add_column(table, args)


def downgrade() -> None:
    for table in ("sessions", "transitions"):
        op.drop_column(table, "reason_args")
        op.drop_column(table, "reason_code")
