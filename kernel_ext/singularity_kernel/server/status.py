"""What a notebook server answers while it is not known which kernels there are.

A list of kernels is refused (504), as a page would drop those that are missing. `GET api/status` is
answered: that goes to probes and monitors, which take a 504 for a server that is not well.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jupyter_server.services.api.handlers import APIStatusHandler
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyter_server.utils import url_path_join
from tornado.web import HTTPError


def not_known_yet(what: str) -> HTTPError:
    """Return the answer for what the scheduler has not told yet. JupyterLab asks again after a 504,
    and takes a 503 for a server that has stopped."""
    return HTTPError(
        504,
        f"{what} is not known yet, because the scheduler does not answer: nothing is lost, the "
        "page asks again",
    )


class StatusHandler(APIStatusHandler):  # type: ignore[misc]
    """Counts the kernels that are listed now."""

    @property
    def kernel_manager(self) -> Any:
        """What lists kernels, without refusing to."""
        manager = self.settings["kernel_manager"]
        known = AsyncMappingKernelManager.list_kernels
        return SimpleNamespace(list_kernels=lambda: known(manager))


def answer_status(server: Any) -> None:
    """Have Jupyter's application answer `api/status` by `StatusHandler`; called by the kernel
    manager once the server's loop runs."""
    path = url_path_join(server.base_url, "/api/status")
    server.web_app.add_handlers(".*$", [(path, StatusHandler)])
