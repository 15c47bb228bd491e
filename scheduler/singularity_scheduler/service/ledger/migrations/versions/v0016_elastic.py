"""Sessions on fewer physical devices than they have virtual ones."""

from __future__ import annotations

import json

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
    _end_resizes()
    op.drop_column("transitions", "devices")
    op.drop_column("sessions", "elastic")


def _end_resizes() -> None:
    """Versions before this one know no `resizing`: a session in the middle of one holds the devices
    that it had before, and nobody holds those that it was to get."""
    connection = op.get_bind()
    sessions = sa.table(
        "sessions", sa.column("id"), sa.column("device_state"), sa.column("elastic")
    )
    leases = sa.table(
        "leases", sa.column("session"), sa.column("device"), sa.column("virtual_device")
    )
    resizing = sessions.c.device_state == "resizing"
    for session, text in connection.execute(
        sa.select(sessions.c.id, sessions.c.elastic).where(resizing)
    ).all():
        before = json.loads(text)["devices"]
        own = leases.c.session == session
        connection.execute(leases.delete().where(own, leases.c.device.not_in(before)))
    connection.execute(sessions.update().where(resizing).values(device_state="held"))
    told = sa.table("transitions", sa.column("device_state"))
    connection.execute(
        told.update().where(told.c.device_state == "resizing").values(device_state="held")
    )
