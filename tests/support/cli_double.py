"""A double of `ServiceClient` for tests of the commands: sessions in memory, every call noted."""

from __future__ import annotations

from typing import Any

from singularity_proxy.errors import NotFound, SingularityError

Json = dict[str, Any]

VERBS = (
    *("park", "resume", "preempt", "suspend", "migrate", "checkpoint", "restore", "fork", "reopen"),
    *("keep", "tier", "priority"),
)


def session(number: int, **changes: Any) -> Json:
    """A session document; its id begins with `number` in four digits."""
    return {
        "id": f"{number:04d}00000000",
        "user": "ada",
        "kind": "interactive",
        "name": f"nb{number}.ipynb",
        "tier": "standard",
        "state": "ready",
        "process_state": "live",
        "device_state": "none",
        "reason": "its process runs",
        "busy": True,
        "idle_since": None,
        "virtual_devices": 1,
        "devices": [],
        "node": "local",
        "created_at": f"2026-11-21T10:{number % 60:02d}:00.000+00:00",
        "updated_at": "2026-11-21T11:00:00.000+00:00",
        "waiting_since": None,
        "queue": None,
        "last_checkpoint": None,
        "exit_code": None,
        "run": None,
        "held_back": False,
        "owner": {},
        **changes,
    }


class Log:
    """As `client.stream.LogStream`: the parts of a log from byte `offset` on."""

    def __init__(self, parts: list[str], offset: int) -> None:
        self.offset = offset
        self._parts = iter(parts)
        self._at = 0

    def __aiter__(self) -> Log:
        return self

    async def __anext__(self) -> str:
        for part in self._parts:
            data = part.encode()
            self._at += len(data)
            rest = data[max(0, self.offset - self._at + len(data)) :]
            if rest:
                self.offset = self._at
                return rest.decode()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._parts = iter([])


class Double:
    """Answers what the commands ask; `refusals` maps a session's id to what its calls raise."""

    def __init__(self, *sessions: Json) -> None:
        self.known = {s["id"]: s for s in sessions}
        self.calls: list[tuple[Any, ...]] = []
        self.refusals: dict[str, SingularityError] = {}
        self.becomes: list[Json] = []
        """What the session is after each verb."""
        self.stored: dict[str, list[Json]] = {}
        """session -> its checkpoints"""
        self.figures: list[Json] = []
        """What the devices of each session do."""
        self.log_parts: list[str] = []
        self.printed_later: list[str] = []
        """What a log that is followed has besides."""
        self.cluster_document: Json = {"nodes": [], "devices": [], "tiers": [], "waiting": {}}

    async def sessions_page(self, **asked: Any) -> Json:
        self.calls.append(("sessions_page", asked))
        found = sorted(self.known.values(), key=lambda s: s["created_at"], reverse=True)
        if asked.get("state") == "active":
            found = [s for s in found if s["process_state"] == "live"]
        elif asked.get("state"):
            found = [s for s in found if s["state"] == asked["state"]]
        for key in ("kind", "user"):
            if asked.get(key):
                found = [s for s in found if s[key] == asked[key]]
        start, limit = int(asked.get("cursor") or 0), asked["limit"]
        end = start + limit
        return {"sessions": found[start:end], "next": str(end) if end < len(found) else None}

    async def sessions(self, state: str | None = None) -> list[Json]:
        return list((await self.sessions_page(state=state, limit=1000))["sessions"])

    async def get_session(self, session: str) -> Json:
        if session not in self.known:
            raise NotFound(f"there is no session {session}")
        return self.known[session]

    async def end_session(self, session: str, reason: str = "", grace_s: float = 5.0) -> Json:
        self.calls.append(("end", session, reason, grace_s))
        if session in self.refusals:
            raise self.refusals[session]
        found = await self.get_session(session)
        found |= {"state": "cancelled", "process_state": "cancelled", "reason": "ended by ada"}
        return found

    async def checkpoints(self, session: str) -> list[Json]:
        return self.stored.get(session, [])

    async def delete_checkpoint(self, session: str, checkpoint: str) -> list[Json]:
        self.calls.append(("delete_checkpoint", session, checkpoint))
        return [c for c in self.stored[session] if checkpoint not in (c["id"], c["name"])]

    async def devices(self, session: str) -> Json:
        self.calls.append(("devices", session))
        return {"session": session, "devices": self.figures}

    async def cluster(self) -> Json:
        return self.cluster_document

    async def history(self, session: str, limit: int = 100) -> list[Json]:
        self.calls.append(("history", session, limit))
        at = "2026-11-21T10:00:00+00:00"
        return [{"at": at, "state": "ready", "rule": "process.live", "reason": "runs"}]

    async def why(self, session: str) -> Json:
        return {"sentence": "it waits\nfor \x1b[31mada", "facts": {"place": 1}}

    def logs(self, session: str, *, offset: int = 0, follow: bool = False) -> Log:
        self.calls.append(("log", session, offset, follow))
        return Log(self.log_parts if not follow else [*self.log_parts, *self.printed_later], offset)

    def __getattr__(self, verb: str) -> Any:
        async def call(session: str, *words: Any, **named: Any) -> Json:
            self.calls.append((verb, session, *words, *((named,) if named else ())))
            if session in self.refusals:
                raise self.refusals[session]
            found = await self.get_session(session)
            return found | self.becomes.pop(0) if self.becomes else found

        if verb in VERBS:
            return call
        raise AttributeError(verb)
