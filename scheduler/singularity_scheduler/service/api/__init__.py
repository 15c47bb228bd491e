"""Requests of the REST API: who asks, what came with them, what is answered."""
