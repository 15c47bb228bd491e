"""What `jupyter singularity fleet init` was told, and whether it ever was. Light: a service without
a fleet loads no more of it."""

from __future__ import annotations

import os
from dataclasses import dataclass

FOLDER = "fleet"
"""In the service's state folder, 0700."""

SETTINGS = "settings.json"
"""In that folder, written last: with it there is a fleet."""

NODE_LIFE_S = 30 * 86_400.0
"""How long a node's certificate counts. It is renewed at half of it, so a node may be switched off
for two weeks."""


@dataclass(frozen=True)
class FleetSettings:
    """Contents of the file."""

    address: str
    """At which other machines reach the service; it goes into join strings."""
    port: int
    listen: str = "0.0.0.0"
    """The address of this machine at which the service listens."""
    certificate_s: float = NODE_LIFE_S
    """How long a node's certificate counts."""
    store: str = ""
    """Folder of the checkpoint store, which a node that joins must share; "": it is not tried."""
    homes: str = ""
    """Folder of the users' homes, likewise."""


def has_fleet(state_dir: str) -> bool:
    """Whether `fleet init` was done in this state folder."""
    return os.path.exists(os.path.join(state_dir, FOLDER, SETTINGS))
