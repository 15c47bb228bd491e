"""Kernel side of Singularity: provisioner, relay, `%singularity` and busy/idle reports.

Importing this package costs nothing: IPython, jupyter_client and the rest are imported by the
modules that need them, at the moment they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .kernel.activity import Activity
    from .kernel.recording import record

__all__ = ["load_ipython_extension", "record", "unload_ipython_extension"]

_loaded: dict[int, Activity] = {}


def __getattr__(name: str) -> Any:
    if name == "record":
        from .kernel.recording import record

        return record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ip: Any) -> None:
    """Add `%singularity`, keep the history apart, and report busy and idle times to the node agent.
    Called by IPython for ``--ext singularity_kernel`` (our kernels) and
    ``%load_ext singularity_kernel``."""
    from .kernel.activity import Activity
    from .kernel.backpressure import wait_for_subscribers
    from .kernel.forked_output import listen_in_the_folder
    from .kernel.history import keep_own_history
    from .kernel.magics import SingularityMagics

    unload_ipython_extension(ip)
    keep_own_history(ip)
    wait_for_subscribers(getattr(ip, "kernel", None))
    listen_in_the_folder(getattr(ip, "kernel", None))
    ip.register_magics(SingularityMagics(ip))
    activity = Activity.from_environment(ip)
    if activity is not None:
        activity.start()
        _loaded[id(ip)] = activity


def unload_ipython_extension(ip: Any) -> None:
    """Take both away again; the session goes on and counts as busy from now on."""
    activity = _loaded.pop(id(ip), None)
    if activity is not None:
        activity.stop()
    for kind in ("line", "cell"):
        ip.magics_manager.magics[kind].pop("singularity", None)
    magics = ip.magics_manager.registry.pop("SingularityMagics", None)
    if magics in ip.configurables:
        ip.configurables.remove(magics)
