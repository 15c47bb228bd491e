"""Sessions on fewer physical devices than they have virtual ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("elastic", sa.Text, nullable=False, server_default=""))
    op.add_column("transitions", sa.Column("devices", sa.Integer))


def downgrade() -> None:
    op.drop_column("transitions", "devices")
    op.drop_column("sessions", "elastic")
