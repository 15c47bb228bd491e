"""The verbs of sessions as methods of the client.

Written by tools/derive.py from the tables in `model`; change those, then run ./dev docs.
"""

from __future__ import annotations

from singularity_scheduler.client.calls import MOVE_S, Calls, Json, without_unsaid


class VerbMethods(Calls):
    """Base of `ServiceClient`."""

    async def park(self, session: str) -> Json:
        """Free its devices, keep its process; the next device call brings it back."""
        return await self._verb(session, "park", {})

    async def preempt(self, session: str) -> Json:
        """Take its devices, nothing is lost, and hold it back until `resume` or `migrate`; a queued
        run does not start meanwhile."""
        return await self._verb(session, "preempt", {})

    async def keep(self, session: str, for_s: float) -> Json:
        """Keep it alive for so many seconds from now on, though it may be idle; 0: no longer."""
        return await self._verb(session, "keep", {"for_s": for_s})

    async def tier(self, session: str, tier: str) -> Json:
        """Change its tier; `Forbidden` for one that is not open to its user."""
        return await self._verb(session, "tier", {"tier": tier})

    async def priority(self, session: str, priority: str) -> Json:
        """Change its priority among sessions of its tier: "low", "medium" or "high"."""
        return await self._verb(session, "priority", {"priority": priority})

    async def suspend(self, session: str, name: str | None = None) -> Json:
        """Put everything of it into the store, as a checkpoint called `name`, and free its node."""
        body: Json = {"name": name}
        return await self._verb(session, "suspend", without_unsaid(body), timeout=MOVE_S)

    async def resume(
        self, session: str, checkpoint: str | None = None, node: str | None = None
    ) -> Json:
        """Ask for its devices now instead of at the next device call; a suspended session comes
        back, from `checkpoint` (id or name; None: the newest) and to `node` (None: any)."""
        body: Json = {"checkpoint": checkpoint, "node": node}
        return await self._verb(session, "resume", without_unsaid(body), timeout=MOVE_S)

    async def migrate(
        self,
        session: str,
        device: str | int | list[str] | None = None,
        node: str | None = None,
        cluster: str | None = None,
    ) -> Json:
        """Move it to `device` ("cpu:1" or 1; one per virtual device), None: to any other; or to
        another `node` or `cluster`, through the store."""
        body: Json = {"device": device, "node": node, "cluster": cluster}
        return await self._verb(session, "migrate", without_unsaid(body), timeout=MOVE_S)

    async def resize(self, session: str, devices: int) -> Json:
        """Run its virtual devices on so many physical ones from now on; see its `resizable`."""
        return await self._verb(session, "resize", {"devices": devices}, timeout=MOVE_S)

    async def checkpoint(
        self, session: str, name: str | None = None, level: str | None = None
    ) -> Json:
        """Store it; returns its JSON with `last_checkpoint`. `level`: "device" or "process"; None:
        the best that its node can do."""
        body: Json = {"name": name, "level": level}
        return await self._verb(session, "checkpoint", without_unsaid(body), timeout=MOVE_S)

    async def restore(self, session: str, checkpoint: str, discard: bool = False) -> Json:
        """Go back to an older checkpoint (id or name) of its own; its present state is stored first
        unless it is to be `discard`ed."""
        body: Json = {"checkpoint": checkpoint, "discard": discard}
        return await self._verb(session, "restore", without_unsaid(body), timeout=MOVE_S)

    async def reopen(self, session: str) -> Json:
        """Take the end of a session back: it is suspended as of its newest checkpoint, with its own
        id (a batch run goes on by itself). Its JSON has `undo_end` as long as that can be done."""
        return await self._verb(session, "reopen", {})
