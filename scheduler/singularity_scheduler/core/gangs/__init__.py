"""Sessions that run one program together, one on each of several nodes. Pure."""
