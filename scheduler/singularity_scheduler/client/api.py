"""`ServiceClient`: the REST API of the scheduler service as async methods with typed errors.

Who uses it: the kernel provisioner and `jupyter singularity run` (sessions), the spawner
(identity, cluster), the JupyterLab extension's server part (everything, plus the event stream).
Every method raises the service's own error (`BadRequest`, `NotFound`, `Conflict`, ...) with its
sentence, or `Unavailable` when the service cannot be reached (`Unreached`: it was asked, and its
answer was lost).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack
from urllib.parse import quote, urlencode

from .calls import MOVE_S, Json
from .groups import Groups
from .made.methods import VerbMethods
from .made.said import SaidOfSession
from .reading import Reading


class ServiceClient(VerbMethods, Reading, Groups):
    """Calls the service at `url` (its base, ending in ``/services/singularity/``) with `token`.

    One per process is enough; it holds no connection between calls. Use it on a running loop.
    """

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
        elastic: bool | None = None,
        scale_policy: Mapping[str, Any] | None = None,
        **said: Unpack[SaidOfSession],
    ) -> Json:
        """Start a session; returns its JSON plus ``"launch": {"pid", "connection", "env"}``.

        `kind` is "interactive" or "batch"; `tier` and `devices` (virtual devices) default to
        what the service is configured with (standard, 1). `launch` is ``{"mode": "capsule" |
        "joined", "argv", "env", "cwd", "connection", "owner_pid"}`` and is passed to the node
        agent, never stored. A repeated call with the same `key` answers with the same session
        instead of starting another. `elastic`: it may run on fewer physical devices than virtual
        ones, as `scale_policy` says more exactly. `said`: what else is said of it.
        """
        body: Json = {"kind": kind, "name": name, "launch": launch}
        wishes = {**said, "elastic": elastic, "scale_policy": scale_policy}
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
        elastic: bool | None = None,
        scale_policy: Mapping[str, Any] | None = None,
        nodes: int | None = None,
        **said: Unpack[SaidOfSession],
    ) -> Json:
        """Submit the run of a notebook; returns its session as soon as it is durable. It starts
        when it is its turn and needs neither the caller nor its server any more.

        `run` is ``{"notebook", "output", "parameters", "kernel", "folder", "python",
        "variables", "timeout_s", "max_retries", "metadata"}``, all but the first optional; or with
        "command", "ranked" and "folder" in place of the first four. A repeated call with the same
        `key` answers with the same session. `nodes`: a command is started on so many nodes, with
        its part of the `devices` on each; what is returned is the first part (see its "part").
        """
        body: Json = {"kind": "batch", "name": name, "run": run}
        wishes = {**said, "elastic": elastic, "scale_policy": scale_policy, "nodes": nodes}
        body |= {key: value for key, value in wishes.items() if value is not None}
        if tier is not None:
            body["tier"] = tier
        if devices is not None:
            body["devices"] = devices
        return await self._json("POST", "sessions", body, key=key)

    async def end_session(self, session: str, reason: str = "", grace_s: float = 5.0) -> Json:
        """End it (idempotent) and return its last JSON: the process gets `grace_s` seconds after
        SIGTERM. An ended session is answered as it is."""
        query = urlencode({"grace_s": grace_s, **({"reason": reason} if reason else {})})
        path = f"sessions/{quote(session, safe='')}?{query}"
        return await self._json("DELETE", path, timeout=120.0)

    async def signal(self, session: str, signum: int) -> Json:
        """Send a signal to the session's main process (2 interrupts a kernel)."""
        return await self._verb(session, "signal", {"signum": signum})

    async def devices(self, session: str) -> Json:
        """``{"session", "node", "at", "devices"}``: memory and utilisation of each of its devices,
        as its node told last."""
        return await self._json("GET", f"sessions/{quote(session, safe='')}/devices")

    async def checkpoints(self, session: str) -> list[Json]:
        """What the store has of it, newest first; of an ended session too."""
        found: list[Json] = (await self._json("GET", _checkpoints_of(session)))["checkpoints"]
        return found

    async def delete_checkpoint(self, session: str, checkpoint: str) -> list[Json]:
        """Delete one by its id or name; returns those that are left."""
        path = f"{_checkpoints_of(session)}/{quote(checkpoint, safe='')}"
        left: list[Json] = (await self._json("DELETE", path))["checkpoints"]
        return left

    async def prove_checkpoint(self, session: str, checkpoint: str) -> list[Json]:
        """See now whether one (id or name) comes back: it is brought back without a trace and
        thrown away. Returns all of them, with `proved_at` or `unproved` of that one."""
        path = f"{_checkpoints_of(session)}/{quote(checkpoint, safe='')}/proof"
        found: list[Json] = (await self._json("POST", path, {}, timeout=MOVE_S))["checkpoints"]
        return found

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
