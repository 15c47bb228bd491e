"""The dashboard: pages of the service for people who look at it with a browser, admins and users.

Pure models (`cluster_map`, `queue_rows`, `series`, `charts`) say what a page shows, templates how,
and handlers for whom. The pages are whole without a script; with one they follow what happens.

The handlers are made of JupyterHub's own, which take long to load: only `addresses` names them.
"""

PLACE = "dashboard/"
"""Where the pages are, below the service's prefix."""
