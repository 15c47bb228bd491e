"""Sessions that were submitted together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("group", sa.String(32), nullable=False, server_default=""))
    op.add_column("sessions", sa.Column("member", sa.Text))
    op.create_index("sessions_by_group", "sessions", ["group"])


def downgrade() -> None:
    op.drop_index("sessions_by_group", "sessions")
    op.drop_column("sessions", "member")
    op.drop_column("sessions", "group")
