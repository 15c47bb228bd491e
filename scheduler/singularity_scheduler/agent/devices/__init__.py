"""Devices of this node: proxies, parks, resizes, recovery and health."""
