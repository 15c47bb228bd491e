"""Ranks that stop together: of a session, and of a gang on several nodes."""
