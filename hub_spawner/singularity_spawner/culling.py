"""Idle culling that loses nothing: the arbiter hook for jupyterhub-idle-culler 2.

    # idle_culler_config.py
    from singularity_spawner.culling import arbiter

    c.IdleCuller.cull_arbiter_hook = arbiter

A server is culled when it was inactive for the culler's time limit and none of its notebooks is in
the middle of a cell, or kept alive by somebody (`keep`); the Spawner suspends them before it stops
it. `hubconfig.configure` with `cull_idle_s` sets all of it up; it runs ``python -m
singularity_spawner.culling``, the culler with this hook.

``--max-age`` does not ask a hook: the culler then stops servers in the middle of their cells, and
the Spawner suspends their notebooks there.
"""

from __future__ import annotations

import datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from singularity_proxy.errors import BadRequest, SingularityError
from singularity_scheduler.client import ServiceClient
from traitlets import default
from traitlets.log import get_logger

from . import hibernation

RETURNING = ("resuming", "starting")


async def arbiter(
    inactive: datetime.timedelta | None,
    inactive_limit: float,
    server: dict[str, Any],
    **_: object,
) -> bool:
    """Whether to cull `server` (the Hub's model of it); called by the culler for each server, also
    those that it then leaves alone for other reasons: nothing is changed here.

    The culler's service needs SINGULARITY_API_URL in its environment and the scopes
    ``access:services!service=singularity`` and ``custom:singularity:admin``. While the scheduler
    does not answer no server is culled.
    """
    if inactive is None or inactive.total_seconds() < inactive_limit:
        return False
    log = get_logger()
    try:
        user, name = owner_of(server)
        client = ServiceClient.from_environment()
        working = [s for s in await client.sessions("active") if _works(s, user, name)]
        if working:
            titles = ", ".join(s["name"] or s["id"] for s in working)
            log.info("Not culling %s/%s: busy or kept alive: %s", user, name, titles)
            return False
    except SingularityError as error:
        log.warning("Not culling %s: %s", server.get("url"), error.message)
        return False
    return True


def owner_of(server: dict[str, Any]) -> tuple[str, str]:
    """User and server name in the Hub's model of a server; raises `BadRequest`."""
    name = str(server.get("name") or "")
    full = server.get("full_name")
    if isinstance(full, str) and full.endswith(f"/{name}"):
        return full.removesuffix(f"/{name}"), name
    parts = [unquote(part) for part in urlsplit(str(server.get("url"))).path.split("/") if part]
    if "user" not in parts[:-1]:
        raise BadRequest(
            f"whose server this is cannot be told from its address {server.get('url')}"
        )
    return parts[parts.index("user") + 1], name


def _works(session: dict[str, Any], user: str, name: str) -> bool:
    state = session["process_state"]
    lives = state == "live" and (bool(session["busy"]) or bool(session.get("keep_until")))
    return (state in RETURNING or lives) and hibernation.belongs(session, user, name)


def main() -> None:
    """The culler with our hook as its default; takes the culler's own options."""
    from jupyterhub_idle_culler import IdleCuller

    class SingularityCuller(IdleCuller):  # type: ignore[misc]
        """Options are those of ``jupyterhub-idle-culler``."""

        @default("cull_arbiter_hook")  # type: ignore[untyped-decorator]
        def _default_arbiter(self) -> Any:
            return arbiter

    SingularityCuller.launch_instance()


if __name__ == "__main__":
    main()
