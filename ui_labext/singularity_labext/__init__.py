"""Server part of the JupyterLab extension: relays the scheduler's API and events to the browser.

The browser never holds a Hub token: its requests are authenticated by the Jupyter server, and the
server asks the scheduler with its own token, so one sees exactly one's own sessions.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Called by jupyter_server when it loads the extension."""
    from .app import SingularityLabExtension

    return [{"module": "singularity_labext", "app": SingularityLabExtension}]
