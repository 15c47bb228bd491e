"""`jupyter singularity checkpoints`: what the store has of sessions."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from singularity_proxy.errors import BadRequest
from traitlets import Unicode

from singularity_scheduler.cli.sessions.choosing import SessionApp

from .views import checkpoint_table

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

Json = dict[str, Any]


class CheckpointsApp(SessionApp):
    name = "jupyter-singularity-checkpoints"
    synopsis = "[SESSION]"
    fewest = 0
    most: ClassVar[int | None] = 1
    description = """List checkpoints, newest first: level (process: everything; device: device
    state alone), size, what they take in the store, age. SESSION is an id, the beginning of one, or
    the name of an active session; of an ended one its id. Without it: those of all active sessions
    that you may see. With --json: an array of checkpoints, each with its session. --prove sees
    now whether one comes back: it is brought back without a trace and thrown away."""
    examples = """
        jupyter singularity checkpoints train.ipynb
        jupyter singularity checkpoints 3f9c --delete "before fine tuning"
        jupyter singularity checkpoints 3f9c --prove 20261130T0102
    """
    offers_ended = True

    delete = Unicode(config=True, help="Id or name of a checkpoint to delete. Empty: none.")
    prove = Unicode(config=True, help="Id or name of a checkpoint to prove now. Empty: none.")
    aliases = {
        "delete": "CheckpointsApp.delete",
        "prove": "CheckpointsApp.prove",
        **SessionApp.aliases,
    }

    async def work(self, client: ServiceClient) -> None:
        for option in (name for name in ("delete", "prove") if getattr(self, name)):
            if not self.words:
                raise BadRequest(f"--{option} needs the session that the checkpoint is of")
        if self.delete and self.prove:
            raise BadRequest("a checkpoint is deleted or proved, not both at once")
        if not self.words:
            found = await self._all(client)
        else:
            session = await self.session(client)
            stored = await self._stored(client, session)
            found = [{"session": session, **one} for one in stored]
        now = datetime.now(timezone.utc)
        one = bool(self.words)
        self.show(found, lambda: checkpoint_table(found, now, one, "there is no checkpoint"))

    async def _stored(self, client: ServiceClient, session: str) -> list[Json]:
        """Those of one session, after what was asked for one of them is done."""
        if self.delete:
            return await client.delete_checkpoint(session, self.delete)
        if self.prove:
            return await client.prove_checkpoint(session, self.prove)
        return await client.checkpoints(session)

    async def _all(self, client: ServiceClient) -> list[Json]:
        having = [s for s in await client.sessions("active") if s.get("checkpoints")]
        found: list[Json] = []
        for session in having:
            stored = await client.checkpoints(str(session["id"]))
            found += [{"session": session["id"], **one} for one in stored]
        return sorted(found, key=lambda one: str(one.get("at")), reverse=True)


main = CheckpointsApp.launch
