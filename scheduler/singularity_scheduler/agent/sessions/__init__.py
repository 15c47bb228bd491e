"""Sessions on this node: their processes, sockets, logs and rings."""
