"""Steps in the life of one session, one at a time. Pure."""
