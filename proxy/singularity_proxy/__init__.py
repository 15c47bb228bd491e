"""The data plane: a device proxy that executes a worker's device calls, and everything it needs.

Imports nothing else of this project and, outside `device` and `worker`, nothing but the standard
library, so that it can be installed next to a user's own PyTorch.
"""

__version__ = "0.1.0"

HIDDEN_DEVICES = "hidden"
"""CUDA_VISIBLE_DEVICES of a session: what does not go through the device proxy sees no device, as
the word is no device's. It differs from "", which a program may choose for its own processes."""
