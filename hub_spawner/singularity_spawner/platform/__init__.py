"""The embedded platform: JupyterHub, scheduler service and node agent on one machine.

`Platform` is what ``jupyter singularity up``, the demo and the tests start.
"""

from .platform import Platform

__all__ = ["Platform"]
