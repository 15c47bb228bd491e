"""Client of the scheduler service: typed calls over REST. Light: no SQL, no Hub, no torch.

`ServiceClient` for asynchronous code, `Client` for everything else.
"""

from .api import ServiceClient
from .sync import Client

__all__ = ["Client", "ServiceClient"]
