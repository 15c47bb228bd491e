"""JupyterLab's "Notebook Jobs" view (jupyter-scheduler) as a view of the platform's batch sessions.

`scheduler` and `execution` are what jupyter-scheduler 2.x is configured with, `backend` is what 3.x
finds; all of them submit, list and stop sessions through the scheduler service. `sessions` knows
what a session is called there. Importing this package costs nothing.
"""
