"""Where checkpoints are kept: one module for each kind of store."""
