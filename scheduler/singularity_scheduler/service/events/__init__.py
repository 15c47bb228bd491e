"""What happened, for those who listen."""
