"""The ledger: tables, rows, transactions."""
