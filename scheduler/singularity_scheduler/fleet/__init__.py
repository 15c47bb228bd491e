"""How the scheduler service reaches node agents: `LocalFleet` on this machine, `MachineFleet` there
and on machines that have joined."""

from .local import LocalFleet
from .machines import MachineFleet

__all__ = ["LocalFleet", "MachineFleet"]
