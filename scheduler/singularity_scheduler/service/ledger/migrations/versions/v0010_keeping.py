"""Sessions that somebody keeps alive."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("keep_until", "keep_from"):
        op.add_column("sessions", sa.Column(name, sa.Float))


def downgrade() -> None:
    for name in ("keep_from", "keep_until"):
        op.drop_column("sessions", name)
