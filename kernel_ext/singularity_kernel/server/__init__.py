"""The notebook server's side of hibernation: kernels that outlive their server.

The Spawner starts single-user servers with the two classes of this package. A server that stops
leaves its sessions to the platform, which suspends them; the next one lists them under the kernel
ids they had. Nothing here is imported by kernels.
"""
