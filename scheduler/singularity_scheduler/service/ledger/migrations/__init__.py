"""Alembic migrations of the ledger, run by `ledger.Ledger.open` at every start."""
