"""What people ask, from the request to what became of it."""
