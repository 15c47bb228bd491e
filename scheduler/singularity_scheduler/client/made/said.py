"""What is said of a new session, as arguments of the client.

Written by tools/derive.py from the tables in `model`; change those, then run ./dev docs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class SaidOfSession(TypedDict, total=False):
    """All of them may be left out, which is the same as None."""

    kernel_id: str | None
    """Jupyter's id of the kernel, so that a restarted server finds it."""

    checkpoint_every_s: float | None
    """Seconds between checkpoints made by themselves; 0: none; None: as the service is
    configured."""

    checkpoint_every_steps: int | None
    """The same by optimizer steps."""

    virtual_cluster: str | None
    """Whose quota its devices count for; an Azure resource id stands for its last part. None:
    nobody's."""

    priority: str | None
    """None: medium."""

    locations: Sequence[str] | None
    """Clusters and regions that it may be in, see `GET clusters`; None or none: anywhere."""

    device_share: float | None
    """Part of the time of one device: below 1 it takes turns with others that share. None: 1."""
