"""Commands about this machine alone."""
