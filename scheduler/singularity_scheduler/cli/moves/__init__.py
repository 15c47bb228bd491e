"""Commands that take a whole session into the store, out of it, or to another place."""
