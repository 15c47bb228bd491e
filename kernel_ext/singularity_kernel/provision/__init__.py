"""How a Jupyter server's kernels become sessions."""
