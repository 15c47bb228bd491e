"""Commands that ask something of one session."""
