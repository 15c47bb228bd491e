"""The worker's half: makes `device="cuda"` mean the session's device proxy.

`hook` is loaded by a `.pth` file in every Python process of a session and nowhere else; it waits
until torch is imported, then `install` takes over the CUDA device type. User code does nothing.
"""
