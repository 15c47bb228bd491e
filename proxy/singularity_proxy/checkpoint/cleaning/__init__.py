"""What stays in a store and what is removed from it."""
