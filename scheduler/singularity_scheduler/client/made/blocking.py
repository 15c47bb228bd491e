"""The verbs of sessions as methods of the client that blocks.

Written by tools/derive.py from the tables in `model`; change those, then run ./dev docs.
"""

from __future__ import annotations

from singularity_scheduler.client.api import ServiceClient
from singularity_scheduler.client.loop import Blocking, call


class BlockingVerbs(Blocking):
    """Base of `Client`."""

    park = call(ServiceClient.park)
    preempt = call(ServiceClient.preempt)
    keep = call(ServiceClient.keep)
    tier = call(ServiceClient.tier)
    priority = call(ServiceClient.priority)
    suspend = call(ServiceClient.suspend)
    resume = call(ServiceClient.resume)
    migrate = call(ServiceClient.migrate)
    resize = call(ServiceClient.resize)
    checkpoint = call(ServiceClient.checkpoint)
    restore = call(ServiceClient.restore)
    reopen = call(ServiceClient.reopen)
