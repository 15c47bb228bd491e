"""What travels between processes: the ring in shared memory and JSON calls over unix sockets."""
