"""The state that decisions are made on, its indices and its invariants. Pure."""
