"""Written by tools/derive.py from the tables in `model`; do not edit."""
