"""The relay of a kernel: its client-facing sockets, and the tunnel to wherever the kernel is."""
