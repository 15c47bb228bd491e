"""What somebody wants of the scheduler for a session, said in several places. Pure.

The places are, the first that says something first: the command line, the job file, the notebook's
own ``metadata.singularity``, the environment that the spawn form has set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singularity_proxy.errors import BadRequest

from singularity_scheduler.model.session import WISHES as DECLARED
from singularity_scheduler.requests.run_spec import parse_run
from singularity_scheduler.requests.spec import parse_spec

from .errors import nearest, shown

WISHES = (
    *("tier", "devices", "elastic", "scale_policy", "nodes"),
    *(each.key for each in DECLARED if each.fact.of_people),
)
"""As the service's API calls them."""

TIME_LIMIT = "timeout_s"
"""May stand in a notebook's metadata too; it belongs to the run."""

FACTS = ("session", "preemptions")
"""What an output notebook says of the session that made it, beside `tier` and `devices`."""


def merged(*places: Mapping[str, Any]) -> dict[str, Any]:
    """All wishes; those of earlier places go before later ones. Who asks for a number of devices
    has said how much of them, so a later place's part of one device does not count, and the other
    way round."""
    found: dict[str, Any] = {}
    for place in places:
        said = {name: value for name, value in place.items() if value not in (None, "", [])}
        if not found.keys().isdisjoint(("devices", "device_share")):
            said = {k: v for k, v in said.items() if k not in ("devices", "device_share")}
        found = {**said, **found}
    return found


def of_notebook(metadata: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The wishes in a notebook's ``metadata.singularity`` (and `TIME_LIMIT`); `BadRequest` for a
    key or a value that is none."""
    said = metadata.get("singularity", {})
    if not isinstance(said, Mapping):
        raise BadRequest(
            f"metadata.singularity of {path} must be an object, such as "
            f'{{"tier": "basic"}}, not {shown(said)}; nothing was started'
        )
    known = (*WISHES, TIME_LIMIT)
    for name in said:
        if name not in known and name not in FACTS:
            raise BadRequest(
                f"metadata.singularity of {path} has the unknown key {shown(name)}: "
                f"{nearest(str(name), known)}; nothing was started"
            )
    found = {name: said[name] for name in known if said.get(name) is not None}
    try:
        parse_spec({name: value for name, value in found.items() if name in WISHES})
        parse_run({"notebook": "/", TIME_LIMIT: found.get(TIME_LIMIT)})
    except BadRequest as error:
        raise BadRequest(
            f"metadata.singularity of {path}: {error.message}; nothing was started"
        ) from None
    return found
