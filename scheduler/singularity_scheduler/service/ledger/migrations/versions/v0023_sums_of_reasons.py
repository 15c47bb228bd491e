"""A checksum of the sentence that stands beside a session's code; "": nobody made one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    sums = sa.Column("reason_sum", sa.String(8), nullable=False, server_default="")
    op.add_column("sessions", sums)


def downgrade() -> None:
    op.drop_column("sessions", "reason_sum")
