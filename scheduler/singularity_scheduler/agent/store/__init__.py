"""Sessions on their way into the checkpoint store and out of it."""
