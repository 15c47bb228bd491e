"""What accounting needs: the experiment of a run, what was ever stored, and indexes by the end."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_AT_ONCE = 500


def upgrade() -> None:
    op.add_column(
        "sessions", sa.Column("experiment", sa.String(255), nullable=False, server_default="")
    )
    _name_experiments()
    op.create_table(
        "checkpoint_log",
        sa.Column("session", sa.String(32), sa.ForeignKey("sessions.id"), primary_key=True),
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
        sa.Column("sent_bytes", sa.BigInteger, nullable=False),
    )
    op.execute(
        "INSERT INTO checkpoint_log (session, id, at, stored_bytes, sent_bytes) "
        "SELECT session, id, at, stored_bytes, sent_bytes FROM checkpoints"
    )
    over = sa.column("ended").is_(True)
    for name, columns in (
        ("sessions_by_end", ["updated_at", "id"]),
        ("sessions_by_user_and_end", ["user", "updated_at", "id"]),
    ):
        op.create_index(name, "sessions", columns, sqlite_where=over, postgresql_where=over)


def _name_experiments() -> None:
    """Of the runs that are there."""
    connection = op.get_bind()
    sessions = sa.table("sessions", sa.column("id"), sa.column("run"), sa.column("experiment"))
    after = ""
    while True:
        query = (
            sa.select(sessions.c.id, sessions.c.run)
            .where(sessions.c.id > after, sessions.c.run.like("%experiment_name%"))
            .order_by(sessions.c.id)
            .limit(_AT_ONCE)
        )
        found = connection.execute(query).all()
        if not found:
            return
        for session, run in found:
            name = json.loads(json.loads(run).get("metadata") or "{}").get("experiment_name")
            if isinstance(name, str):
                name = "".join(c for c in name if c.isprintable())[:255]
                connection.execute(
                    sessions.update().where(sessions.c.id == session).values(experiment=name)
                )
            after = session


def downgrade() -> None:
    op.drop_index("sessions_by_user_and_end", "sessions")
    op.drop_index("sessions_by_end", "sessions")
    op.drop_table("checkpoint_log")
    op.drop_column("sessions", "experiment")
