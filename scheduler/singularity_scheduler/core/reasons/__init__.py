"""Reasons and refusals as data: a code and its arguments. Pure."""
