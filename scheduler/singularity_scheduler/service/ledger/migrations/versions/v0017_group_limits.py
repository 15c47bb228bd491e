"""Groups of runs with a time limit; its place is in `sessions.member`."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The tables stay; versions before this one cannot read such a group."""


def downgrade() -> None:
    connection = op.get_bind()
    sessions = sa.table("sessions", sa.column("id"), sa.column("member"))
    limited = sessions.c.member.like('%"timeout_s"%')
    found = connection.execute(sa.select(sessions.c.id, sessions.c.member).where(limited)).all()
    for session, text in found:
        member = json.loads(text)
        member.pop("timeout_s", None)
        row = sessions.update().where(sessions.c.id == session)
        connection.execute(row.values(member=json.dumps(member)))
