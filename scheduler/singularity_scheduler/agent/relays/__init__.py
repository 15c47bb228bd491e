"""The relays of this node: between Jupyter's clients and kernels, wherever those are."""
