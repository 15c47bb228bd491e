"""Why devices and nodes are not used, as codes with arguments; "": in the words of a person."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("device_marks", "node_duties"):
        code = sa.Column("reason_code", sa.String(64), nullable=False, server_default="")
        args = sa.Column("reason_args", sa.Text, nullable=False, server_default="{}")
        op.add_column(table, code)
        op.add_column(table, args)


def downgrade() -> None:
    _put_into_words("sessions", "member", "reached_why")
    _put_into_words("upgrades", "document", "why")
    for table in ("device_marks", "node_duties"):
        op.drop_column(table, "reason_args")
        op.drop_column(table, "reason_code")


def _put_into_words(name: str, column: str, key: str) -> None:
    """Versions before this one know no reason under this key of a JSON column, but sentences."""
    connection = op.get_bind()
    table = sa.table(name, sa.column("id"), sa.column(column))
    text = table.c[column]
    for number, document in connection.execute(
        sa.select(table.c.id, text).where(text.like(f'%"{key}": {{%'))
    ).all():
        told = json.loads(document)
        why = told[key]
        told[key] = why.get("said", why["code"])
        row = table.update().where(table.c.id == number)
        connection.execute(row.values({column: json.dumps(told)}))
