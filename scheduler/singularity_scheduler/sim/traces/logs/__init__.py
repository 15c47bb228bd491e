"""Readers of published traces."""
