"""What administrators say: parameters, duties of nodes, upgrades, virtual clusters, a log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("held_since", sa.Float))
    for name, default, length in (("virtual_cluster", "", 255), ("priority", "medium", 16)):
        op.add_column(
            "sessions",
            sa.Column(name, sa.String(length), nullable=False, server_default=default),
        )
    op.create_table(
        "parameters",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "node_duties",
        sa.Column("node", sa.String(255), primary_key=True),
        sa.Column("duty", sa.String(16), nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("deadline", sa.Float),
        sa.Column("notice", sa.Boolean, nullable=False),
        sa.Column("force", sa.Boolean, nullable=False),
        sa.Column("instance", sa.String(64), nullable=False),
    )
    op.create_table(
        "upgrades",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table(
        "virtual_clusters",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("quota_devices", sa.Integer, nullable=False),
        sa.Column("may_borrow", sa.Boolean, nullable=False),
    )
    op.create_table(
        "admin_log",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("verb", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("before", sa.Text, nullable=False),
        sa.Column("after", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("rule", sa.String(64), nullable=False),
    )
    op.create_index("admin_log_by_subject", "admin_log", ["subject", "n"])


def downgrade() -> None:
    op.drop_index("admin_log_by_subject", table_name="admin_log")
    for name in ("admin_log", "virtual_clusters", "upgrades", "node_duties", "parameters"):
        op.drop_table(name)
    for name in ("priority", "virtual_cluster", "held_since"):
        op.drop_column("sessions", name)
