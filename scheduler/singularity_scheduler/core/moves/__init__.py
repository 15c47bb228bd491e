"""Whole sessions that go into the store, come back or go elsewhere. Pure."""
