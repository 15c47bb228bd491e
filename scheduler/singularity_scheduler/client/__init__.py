"""Client of the scheduler service: typed calls over REST. Light: no SQL, no Hub, no torch."""

from .api import ServiceClient

__all__ = ["ServiceClient"]
