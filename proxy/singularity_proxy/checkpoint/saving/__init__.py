"""Saves files as a checkpoint: cut, packed, sent."""
