"""How the scheduler service reaches node agents: `LocalFleet` for this machine."""

from .local import LocalFleet

__all__ = ["LocalFleet"]
