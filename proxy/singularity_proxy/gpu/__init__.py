"""Proves and measures the device proxy on a machine with an NVIDIA GPU: `./dev gpu`.

Needs this package, torch and a C++ compiler. Everything that is said about real GPUs comes from a
report that this wrote there; see docs/how-to/gpu.md.
"""
