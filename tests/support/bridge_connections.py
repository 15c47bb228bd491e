"""Connections between bridges, as tests have them."""

from __future__ import annotations

from singularity_proxy.elastic.bridge.connection import Connection


def feed(connection: Connection, data: bytes) -> None:
    """As if this came from the other end."""
    left = memoryview(data)
    while left:
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(left))
        buffer[:count] = left[:count]
        left = left[count:]
        connection.buffer_updated(count)
