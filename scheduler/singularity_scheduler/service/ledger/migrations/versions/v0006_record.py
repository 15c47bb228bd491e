"""The record of decisions, its snapshots, and who leads."""

from __future__ import annotations

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "decisions",
        sa.Column("n", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("leader", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("event", sa.String(64), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("decisions_by_age", "decisions", ["at"])
    op.create_table(
        "snapshots",
        sa.Column("n", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    leadership = op.create_table(
        "leadership",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("ledger", sa.String(32), nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("until", sa.Float, nullable=False),
    )
    row = {"id": 1, "ledger": uuid4().hex, "epoch": 0, "holder": "", "name": "", "until": 0.0}
    op.bulk_insert(leadership, [row])


def downgrade() -> None:
    op.drop_table("leadership")
    op.drop_table("snapshots")
    op.drop_index("decisions_by_age", "decisions")
    op.drop_table("decisions")
