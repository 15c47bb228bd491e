"""`ServiceClient`: the REST API of the scheduler service as async methods with typed errors.

Who uses it: the kernel provisioner and `jupyter singularity run` (sessions), the spawner
(identity, cluster), the JupyterLab extension's server part (everything, plus the event stream).
Every method raises the service's own error (`BadRequest`, `NotFound`, `Conflict`, ...) with its
sentence, or `Unavailable` when the service cannot be reached.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from singularity_proxy.errors import Unavailable

from .http import Broken, request
from .problems import to_error
from .stream import EventStream, LogStream

Json = dict[str, Any]

MOVE_S = 600.0
"""How long the verbs wait that write a whole session to the store or read it back."""

USAGE_S = 300.0
"""How long sums over everything that the ledger has may take."""

PAGE = 1000
"""Sessions per page when all of them are wanted."""


class ServiceClient:
    """Calls the service at `url` (its base, ending in ``/services/singularity/``) with `token`.

    One per process is enough; it holds no connection between calls. Use it on a running loop.
    """

    def __init__(self, url: str, token: str, *, timeout: float = 60.0) -> None:
        """`timeout`: seconds for one call; starting and ending sessions get at least 120."""
        self.url = url.rstrip("/") + "/"
        self._token = token
        self._timeout = timeout

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> ServiceClient:
        """The client a single-user server's processes use: SINGULARITY_API_URL and
        JUPYTERHUB_API_TOKEN, set by the spawner. Raises `Unavailable` when one is missing."""
        env = os.environ if environ is None else environ
        missing = [n for n in ("SINGULARITY_API_URL", "JUPYTERHUB_API_TOKEN") if not env.get(n)]
        if missing:
            raise Unavailable(
                f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set, so the "
                "scheduler cannot be reached: start this from a server that the Singularity "
                "spawner started",
                missing=missing,
            )
        return cls(env["SINGULARITY_API_URL"], env["JUPYTERHUB_API_TOKEN"])

    # -- sessions ---------------------------------------------------------------------------

    async def create_session(
        self,
        *,
        kind: str,
        launch: Json,
        tier: str | None = None,
        devices: int | None = None,
        name: str = "",
        key: str | None = None,
        kernel_id: str | None = None,
        every_s: float | None = None,
        every_steps: int | None = None,
        virtual_cluster: str | None = None,
        priority: str | None = None,
        locations: Sequence[str] | None = None,
        device_share: float | None = None,
    ) -> Json:
        """Start a session; returns its JSON plus ``"launch": {"pid", "connection", "env"}``.

        `kind` is "interactive" or "batch"; `tier` and `devices` (virtual devices) default to
        what the service is configured with (standard, 1). `launch` is ``{"mode": "capsule" |
        "joined", "argv", "env", "cwd", "connection", "owner_pid"}`` and is passed to the node
        agent, never stored. A repeated call with the same `key` answers with the same session
        instead of starting another. `kernel_id`: Jupyter's, for `suspended`; `every_s` and
        `every_steps`: when a checkpoint is made by itself (0: never, None: as configured).
        `virtual_cluster`: whose quota its devices count for; `priority` "low", "medium" or "high"
        orders sessions of one tier; `locations`: clusters and regions that it may be in, none:
        anywhere; `device_share`: part of the time of one device, None: all of it.
        """
        body: Json = {"kind": kind, "name": name, "launch": launch}
        wishes = {
            "kernel_id": kernel_id,
            "checkpoint_every_s": every_s,
            "checkpoint_every_steps": every_steps,
            "virtual_cluster": virtual_cluster,
            "priority": priority,
            "locations": list(locations) if locations else None,
            "device_share": device_share,
        }
        body |= {key: value for key, value in wishes.items() if value is not None}
        if tier is not None:
            body["tier"] = tier
        if devices is not None:
            body["devices"] = devices
        return await self._json("POST", "sessions", body, key=key, timeout=120.0)

    async def submit(
        self,
        *,
        run: Json,
        tier: str | None = None,
        devices: int | None = None,
        name: str = "",
        key: str | None = None,
        virtual_cluster: str | None = None,
        priority: str | None = None,
        locations: Sequence[str] | None = None,
        device_share: float | None = None,
    ) -> Json:
        """Submit the run of a notebook; returns its session as soon as it is durable. It starts
        when it is its turn and needs neither the caller nor its server any more.

        `run` is ``{"notebook", "output", "parameters", "kernel", "folder", "python",
        "variables", "timeout_s", "max_retries", "metadata"}``, all but the first optional; or with
        "command", "ranked" and "folder" in place of the first four. A repeated call with the same
        `key` answers with the same session.
        """
        body: Json = {"kind": "batch", "name": name, "run": run}
        wishes = {
            "virtual_cluster": virtual_cluster,
            "priority": priority,
            "locations": list(locations) if locations else None,
            "device_share": device_share,
        }
        body |= {key: value for key, value in wishes.items() if value is not None}
        if tier is not None:
            body["tier"] = tier
        if devices is not None:
            body["devices"] = devices
        return await self._json("POST", "sessions", body, key=key)

    async def get_session(self, session: str) -> Json:
        """One session. `NotFound` for an unknown one and for another user's."""
        return await self._json("GET", f"sessions/{quote(session, safe='')}")

    async def list_sessions(self, state: str | None = None) -> list[Json]:
        """Own sessions (an admin: all), newest first; `state` keeps those with that word, or
        "active" for those that have not ended."""
        found: list[Json] = []
        cursor = None
        while True:
            page = await self.sessions_page(state=state, limit=PAGE, cursor=cursor)
            found += page["sessions"]
            if not (cursor := page.get("next")):
                return found

    async def sessions_page(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        user: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Json:
        """``{"sessions", "next"}``: at most `limit` (1 to 1000) sessions, newest first; pass
        `next` as `cursor` for those after them, it is None at the end. `kind` is "interactive" or
        "batch", `user` another user's name (for admins). Long parameters and variables of runs are
        None here; `get_session` has them."""
        asked = {"state": state, "kind": kind, "user": user, "limit": limit, "cursor": cursor}
        query = urlencode({k: v for k, v in asked.items() if v is not None and v != ""})
        return await self._json("GET", f"sessions?{query}")

    async def end_session(self, session: str, reason: str = "", grace_s: float = 5.0) -> Json:
        """End it (idempotent) and return its last JSON: the process gets `grace_s` seconds after
        SIGTERM. An ended session is answered as it is."""
        query = urlencode({"grace_s": grace_s, **({"reason": reason} if reason else {})})
        path = f"sessions/{quote(session, safe='')}?{query}"
        return await self._json("DELETE", path, timeout=120.0)

    async def signal(self, session: str, signum: int) -> Json:
        """Send a signal to the session's main process (2 interrupts a kernel)."""
        return await self._verb(session, "signal", {"signum": signum})

    async def park(self, session: str) -> Json:
        """Free its devices, keep its process; the next device call brings it back."""
        return await self._verb(session, "park", {})

    async def keep(self, session: str, for_s: float) -> Json:
        """Keep it alive for so many seconds from now on, though it may be idle; 0: no longer."""
        return await self._verb(session, "keep", {"for_s": for_s})

    async def tier(self, session: str, tier: str) -> Json:
        """Change its tier; `Forbidden` for one that is not open to its user."""
        return await self._verb(session, "tier", {"tier": tier})

    async def priority(self, session: str, priority: str) -> Json:
        """Change its priority among sessions of its tier: "low", "medium" or "high"."""
        return await self._verb(session, "priority", {"priority": priority})

    async def devices(self, session: str) -> Json:
        """``{"session", "node", "at", "devices"}``: memory and utilisation of each of its devices,
        as its node told last."""
        return await self._json("GET", f"sessions/{quote(session, safe='')}/devices")

    async def resume(
        self, session: str, checkpoint: str | None = None, node: str | None = None
    ) -> Json:
        """Ask for its devices now instead of at the next device call; a suspended session comes
        back, from `checkpoint` (id or name; None: the newest) and to `node` (None: any)."""
        body = {"checkpoint": checkpoint, "node": node}
        wanted = {k: v for k, v in body.items() if v is not None}
        return await self._verb(session, "resume", wanted, timeout=MOVE_S)

    async def migrate(
        self,
        session: str,
        device: str | int | list[str] | None = None,
        node: str | None = None,
        cluster: str | None = None,
    ) -> Json:
        """Move it to `device` ("cpu:1" or 1; one per virtual device), None: to any other; or to
        another `node` or `cluster`, through the store."""
        named = {"device": device, "node": node, "cluster": cluster}
        body: Json = {name: word for name, word in named.items() if word is not None}
        body = body or {"device": None}
        return await self._verb(session, "migrate", body, timeout=MOVE_S)

    async def preempt(self, session: str) -> Json:
        """Take its devices, nothing is lost, and hold it back until `resume` or `migrate`; a
        queued run does not start meanwhile."""
        return await self._verb(session, "preempt", {})

    async def suspend(self, session: str, name: str | None = None) -> Json:
        """Put everything of it into the store, as a checkpoint called `name`, and free its node."""
        body = {} if name is None else {"name": name}
        return await self._verb(session, "suspend", body, timeout=MOVE_S)

    async def checkpoint(
        self, session: str, name: str | None = None, level: str | None = None
    ) -> Json:
        """Store it; returns its JSON with `last_checkpoint`. `level`: "device" or "process"; None:
        the best that its node can do."""
        body: Json = {"name": name} if level is None else {"name": name, "level": level}
        return await self._verb(session, "checkpoint", body, timeout=MOVE_S)

    async def checkpoints(self, session: str) -> list[Json]:
        """What the store has of it, newest first; of an ended session too."""
        found: list[Json] = (await self._json("GET", _checkpoints_of(session)))["checkpoints"]
        return found

    async def delete_checkpoint(self, session: str, checkpoint: str) -> list[Json]:
        """Delete one by its id or name; returns those that are left."""
        path = f"{_checkpoints_of(session)}/{quote(checkpoint, safe='')}"
        left: list[Json] = (await self._json("DELETE", path))["checkpoints"]
        return left

    async def restore(self, session: str, checkpoint: str, discard: bool = False) -> Json:
        """Go back to an older checkpoint (id or name) of its own; its present state is stored
        first unless it is to be `discard`ed."""
        body: Json = {"checkpoint": checkpoint, **({"discard": True} if discard else {})}
        return await self._verb(session, "restore", body, timeout=MOVE_S)

    async def fork(
        self,
        session: str,
        checkpoint: str | None = None,
        name: str | None = None,
        key: str | None = None,
    ) -> Json:
        """Begin a second session where a checkpoint (None: the newest) of this one is; returns the
        new one's JSON. A repeated call with the same `key` answers with the same session."""
        body = {"checkpoint": checkpoint, "name": name}
        wanted = {k: v for k, v in body.items() if v is not None}
        path = f"sessions/{quote(session, safe='')}/fork"
        return await self._json("POST", path, wanted, key=key, timeout=MOVE_S)

    async def hibernate(
        self, user: str, server: str | None = None, wait_s: float | None = None
    ) -> Json:
        """Suspend the notebooks of a user's server that is about to stop (None: of all) instead of
        ending them; ``{"suspended", "suspending", "kept"}``. For the user and admins. `kept`
        says of each why, and whether its node can store processes at all (`possible`). `wait_s`:
        seconds after which it is answered in any case (None: the service's own limit)."""
        asked = {"server": server, "wait_s": wait_s}
        body = {key: value for key, value in asked.items() if value is not None}
        return await self._json("PUT", _suspended_of(user), body, timeout=MOVE_S + (wait_s or 0))

    async def connection(self, session: str) -> Json:
        """The connection information of its kernel, with the key; to its user alone. Raises
        `NotFound` when it has none now."""
        path = f"sessions/{quote(session, safe='')}/connection"
        found: Json = (await self._json("GET", path))["connection"]
        return found

    async def suspended(
        self, user: str, server: str | None = None, live: bool = False
    ) -> list[Json]:
        """A user's notebooks that are in the store or on their way, each ``{"session",
        "kernel_id", "connection"}``: what a restarted server shows them with; `live`: and those
        that run. `connection` is None for everybody but the user."""
        asked = {"server": server, "live": "true" if live else None}
        query = urlencode({key: value for key, value in asked.items() if value is not None})
        path = f"{_suspended_of(user)}?{query}" if query else _suspended_of(user)
        found: list[Json] = (await self._json("GET", path))["notebooks"]
        return found

    async def own(self, session: str, owner_pid: int) -> Json:
        """The session belongs to process `owner_pid` of the calling server's node from now on."""
        path = f"sessions/{quote(session, safe='')}/owner"
        return await self._json("PUT", path, {"owner_pid": owner_pid})

    async def drain(self, node: str, device: str, reason: str = "") -> Json:
        """Give a device to no session any more and move those on it off; returns its JSON. For
        administrators."""
        return await self._json("PUT", _drain_of(node, device), {"reason": reason})

    async def return_device(self, node: str, device: str) -> Json:
        """Let sessions have a drained device again; returns its JSON. For administrators."""
        return await self._json("DELETE", _drain_of(node, device))

    async def why(self, session: str) -> Json:
        """``{"sentence", "facts"}``: why it is in its state."""
        return await self._json("GET", f"sessions/{quote(session, safe='')}/why")

    async def history(self, session: str, limit: int = 100) -> list[Json]:
        """Its newest `limit` changes, oldest first."""
        entries: list[Json] = (await self.history_page(session, limit))["history"]
        return entries

    async def history_page(self, session: str, limit: int = 100, cursor: str | None = None) -> Json:
        """``{"history", "next"}``: `limit` changes, oldest first; pass `next` as `cursor` for those
        before them, it is None at the beginning."""
        asked = {"limit": limit, **({"cursor": cursor} if cursor else {})}
        return await self._json(
            "GET", f"sessions/{quote(session, safe='')}/history?{urlencode(asked)}"
        )

    def log(self, session: str, *, offset: int = 0, follow: bool = False) -> LogStream:
        """What the session's process wrote, from byte `offset` on, as text as it comes; with
        `follow` until the session has ended. A connection that breaks is made again from where it
        broke, `Unavailable` after 30 s without service. `Conflict` for a joined session: it
        writes to its own terminal. `offset` of what is returned says where to go on."""
        path = f"sessions/{quote(session, safe='')}/log"
        return LogStream(f"{self.url}api/v1/{path}", self._headers(), offset, follow)

    # -- accounting -------------------------------------------------------------------------

    async def usage(
        self,
        by: str = "user",
        since: str | float | None = None,
        until: str | float | None = None,
        user: str | None = None,
    ) -> Json:
        """What own sessions (an admin: all) used: ``{"by", "since", "until", "usage"}`` with all
        lines. `by` is a key of `client.usage.BY`, the figures of a line are those of
        `client.usage.FIGURES`; `since` and `until` are ISO 8601 or UNIX seconds, None: the last 7
        days; `user`: only this one's, for admins."""
        asked = {"by": by, "since": since, "until": until, "user": user, "limit": PAGE}
        whole: Json | None = None
        cursor = None
        while whole is None or cursor:
            query = {k: v for k, v in {**asked, "cursor": cursor}.items() if v is not None}
            page = await self._json("GET", f"usage?{urlencode(query)}", timeout=USAGE_S)
            cursor = page.pop("next")
            if whole is None:
                whole = page
            else:
                whole["usage"] += page["usage"]
        return whole

    # -- administration ---------------------------------------------------------------------

    async def parameters(self) -> list[Json]:
        """The policy's parameters, each ``{"name", "value", "default", "set", "low", "high",
        "help"}``. For administrators, as all of these."""
        return await self._list("GET", "admin/parameters", "parameters")

    async def set_parameters(self, changes: Mapping[str, Any], reason: str = "") -> list[Json]:
        """Change some of them (None: its default), all or none; they count at once."""
        body = {"parameters": dict(changes), "reason": reason}
        return await self._list("PATCH", "admin/parameters", "parameters", body)

    async def reset_parameter(self, name: str) -> list[Json]:
        """Let one have its default again."""
        path = f"admin/parameters/{quote(name, safe='')}"
        return await self._list("DELETE", path, "parameters")

    async def admin_log(self, subject: str | None = None, limit: int = 100) -> list[Json]:
        """Who changed what, newest first; `subject`: of this parameter, node or virtual cluster."""
        asked = {"subject": subject, "limit": limit}
        query = urlencode({k: v for k, v in asked.items() if v is not None})
        return await self._list("GET", f"admin/log?{query}", "log")

    async def virtual_clusters(self) -> list[Json]:
        """Each ``{"name", "quota_devices", "may_borrow", "used", "borrowed", "waiting",
        "sessions"}``."""
        return await self._list("GET", "admin/virtual-clusters", "virtual_clusters")

    async def set_quota(
        self, name: str, quota_devices: int, may_borrow: bool = True, reason: str = ""
    ) -> list[Json]:
        """Make a virtual cluster or give it another quota; `may_borrow`: its sessions may have
        more while nobody else needs it."""
        body: Json = {"quota_devices": quota_devices, "may_borrow": may_borrow, "reason": reason}
        path = f"admin/virtual-clusters/{quote(name, safe='')}"
        return await self._list("PUT", path, "virtual_clusters", body)

    async def remove_virtual_cluster(self, name: str) -> list[Json]:
        """Remove one that has no sessions any more."""
        path = f"admin/virtual-clusters/{quote(name, safe='')}"
        return await self._list("DELETE", path, "virtual_clusters")

    async def nodes(self) -> list[Json]:
        """The nodes as administrators see them: duty, who said so and why, what is on them."""
        return await self._list("GET", "admin/nodes", "nodes")

    async def cordon(self, node: str, reason: str = "") -> Json:
        """Place nothing new on a node; what is there goes on. Returns the node's JSON, as all of
        these."""
        return await self._json("PUT", _of_node(node, "cordon"), {"reason": reason})

    async def uncordon(self, node: str) -> Json:
        """Place sessions there again."""
        return await self._json("DELETE", _of_node(node, "cordon"))

    async def drain_node(
        self,
        node: str,
        reason: str = "",
        deadline_s: float | None = None,
        force: bool = False,
        store: bool = False,
    ) -> Json:
        """Empty a node: its sessions go on elsewhere or wait in the store. `force`: what can
        neither move nor be stored is ended (at the deadline, if there is one). `store`: do so even
        when no other node could take some of them. Answered at once."""
        body: Json = {"reason": reason, "force": force, "store": store}
        if deadline_s is not None:
            body["deadline_s"] = deadline_s
        return await self._json("PUT", _of_node(node, "drain"), body)

    async def undrain_node(self, node: str) -> Json:
        """Call a drain off, or use a drained node again."""
        return await self._json("DELETE", _of_node(node, "drain"))

    async def notice(self, node: str, in_s: float, reason: str = "") -> Json:
        """Its machine goes away in `in_s` seconds: drain it until then."""
        body: Json = {"in_s": in_s, "reason": reason}
        return await self._json("PUT", _of_node(node, "notice"), body)

    async def upgrade(self) -> Json:
        """The upgrade of nodes that is under way, or the last one."""
        return await self._json("GET", "admin/upgrade")

    async def begin_upgrade(
        self, nodes: Sequence[str] = (), at_once: int = 1, reason: str = "", wait: bool = False
    ) -> Json:
        """Upgrade these nodes (none: all), `at_once` at a time; `wait`: sessions without room
        elsewhere wait in the store, else it stops. Returns the upgrade's JSON, as all of these."""
        body: Json = {"nodes": list(nodes), "at_once": at_once, "reason": reason, "wait": wait}
        return await self._json("PUT", "admin/upgrade", body)

    async def change_upgrade(self, state: str, wait: bool | None = None) -> Json:
        """Let it be "paused" or "running"."""
        body: Json = {"state": state} if wait is None else {"state": state, "wait": wait}
        return await self._json("PATCH", "admin/upgrade", body)

    async def cancel_upgrade(self) -> Json:
        """Give it up: the nodes that it took out are used again."""
        return await self._json("DELETE", "admin/upgrade")

    async def upgraded(self, node: str) -> Json:
        """Say that a node that is out is upgraded."""
        return await self._json("PUT", f"admin/upgrade/nodes/{quote(node, safe='')}", {})

    # -- the cluster ------------------------------------------------------------------------

    async def cluster(self) -> Json:
        """``{"nodes", "devices", "tiers", "waiting"}``."""
        return await self._json("GET", "cluster")

    async def clusters(self) -> Json:
        """``{"home", "locations", "regions", "clusters"}``: all of them by their sums."""
        return await self._json("GET", "clusters")

    async def identity(self, user: str) -> Json:
        """The uid and gid that `user`'s processes get: ``{"uid", "gid", "mapped", "sentence"}``.
        For the user and for services and admins with our admin scope."""
        return await self._json("PUT", f"users/{quote(user, safe='')}", {})

    async def tiers(self, user: str) -> list[str]:
        """The tiers that are open to a user's sessions; for the user and administrators."""
        found: list[str] = (await self._json("GET", _tiers_of(user)))["tiers"]
        return found

    async def set_tiers(self, user: str, tiers: Sequence[str]) -> list[str]:
        """Say which tiers are open to a user; for administrators. The sessions that there are keep
        theirs."""
        body: Json = {"tiers": list(tiers)}
        found: list[str] = (await self._json("PUT", _tiers_of(user), body))["tiers"]
        return found

    def events(self, last_event_id: str | None = None) -> EventStream:
        """The live stream, each ``{"event", "data", "id"}``: "session" with the document of a
        changed session, "queue" with ``{"places": {session: place}}`` of those whose place in the
        queue changed, "progress" of a transfer, "devices" (as `devices`) of those whose memory or
        utilisation changed. First comes a "snapshot" with all sessions one may see, or, with the
        `id` of the last event that was read, exactly what came after it while the service still
        knows.
        Ends with `Unavailable` when the service goes away; call again with the `last_id` of what
        was returned to go on."""
        return EventStream(f"{self.url}api/v1/events", self._headers(), last_event_id)

    # -- plumbing ---------------------------------------------------------------------------

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"token {self._token}", "Accept": "application/json"}

    async def _verb(self, session: str, verb: str, body: Json, timeout: float = 0.0) -> Json:
        path = f"sessions/{quote(session, safe='')}/{verb}"
        return await self._json("POST", path, body, timeout=timeout)

    async def _list(self, method: str, path: str, key: str, body: Json | None = None) -> list[Json]:
        found: list[Json] = (await self._json(method, path, body))[key]
        return found

    async def _json(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        key: str | None = None,
        timeout: float = 0.0,
    ) -> Json:
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key:
            headers["Idempotency-Key"] = key
        try:
            async with request(
                method,
                f"{self.url}api/v1/{path}",
                headers,
                None if body is None else json.dumps(body).encode(),
                timeout=max(self._timeout, timeout),
            ) as answer:
                content = await answer.body()
        except Broken as error:
            raise Unavailable(
                f"the scheduler service does not answer ({error}); nothing was changed that it "
                "did not confirm: try again in a moment",
                url=self.url,
            ) from None
        if answer.status >= 300:
            raise to_error(answer.status, answer.reason, content)
        try:
            document = json.loads(content)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise to_error(answer.status, answer.reason, content)
        return document


def _drain_of(node: str, device: str) -> str:
    return f"nodes/{quote(node, safe='')}/devices/{quote(device, safe=':')}/drain"


def _of_node(node: str, what: str) -> str:
    return f"admin/nodes/{quote(node, safe='')}/{what}"


def _checkpoints_of(session: str) -> str:
    return f"sessions/{quote(session, safe='')}/checkpoints"


def _tiers_of(user: str) -> str:
    return f"users/{quote(user, safe='')}/tiers"


def _suspended_of(user: str) -> str:
    return f"users/{quote(user, safe='')}/suspended"
