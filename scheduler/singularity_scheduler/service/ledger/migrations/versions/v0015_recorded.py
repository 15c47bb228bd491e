"""Values that runs recorded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("recorded", sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("sessions", "recorded")
