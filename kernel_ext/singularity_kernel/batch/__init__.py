"""Batch runs: a notebook that runs without a browser, under papermill, as a session.

`submit` sends a run to the scheduler, ``python -m singularity_kernel.batch`` is what the node agent
starts for it, and `engine` is papermill's way in (``papermill --engine singularity``). Importing
this package costs nothing.
"""
