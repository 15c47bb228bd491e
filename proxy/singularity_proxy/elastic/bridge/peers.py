"""Where the bridges of other parts are: a file that the node agent writes anew when it changes."""

from __future__ import annotations

import json
from pathlib import Path

from singularity_proxy.errors import BadRequest

Address = tuple[str, int]


def read(path: Path, parts: int) -> dict[int, Address]:
    """Part -> (host, port), of those that are known: ``{"0": "host:port"}``. No file: none yet.
    Raises BadRequest for a file that says something else."""
    try:
        said = json.loads(path.read_text())
        found = {int(part): _address(where) for part, where in said.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError):
        raise BadRequest(f"{path} does not say where the parts are") from None
    if any(not 0 <= part < parts for part in found):
        raise BadRequest(f"{path} names a part that there is not among {parts}")
    return found


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not 0 < int(port) < 65536:
        raise ValueError(text)
    return host.strip("[]"), int(port)
