"""Alembic environment: runs on the connection that `Ledger.open` hands over."""

from __future__ import annotations

from alembic import context

from singularity_scheduler.service.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite changes tables by copying them
)
with context.begin_transaction():
    context.run_migrations()
