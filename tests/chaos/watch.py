"""What must hold all the time, looked at every second: the ledger is what is there, nothing is
stuck, nothing of ended sessions is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from singularity_proxy.errors import SingularityError, Unavailable

from . import processes
from .growth import Growth
from .notebooks import CsvWriter
from .subjects import ENDED, Subject
from .world import PATIENCE_S, Json, World

EVERY_S = 1.0

REALITY_EVERY = 4
"""In looks: how often the ledger is compared with the machine."""

LEFT_S = 45.0
"""Calm seconds after its end in which everything of a session must be gone."""

_PASSING = ("starting", "suspending", "resuming")
_CHANGING = ("attaching", "parking", "resizing")


class Watch:
    """Runs beside everything else until it is cancelled."""

    def __init__(self, world: World, subjects: Sequence[Subject]) -> None:
        self.world, self.subjects = world, subjects
        self.growth = Growth(len(world.nodes))
        self.cluster: Json = {}
        self._stuck: dict[tuple[str, str], tuple[Any, float]] = {}
        """(subject, rule) -> (what does not change, calm seconds at its beginning)."""
        self._odd: dict[tuple[str, str], float] = {}
        """(session, what is odd) -> calm seconds when that was first seen."""
        self._before: dict[str, Json] = {}
        self._looks = 0

    async def run(self) -> None:
        """Look every second; what goes wrong with a look is written down, and the next one
        comes."""
        while True:
            began = self.world.timeline.now
            try:
                async with asyncio.timeout(20.0):
                    await self.look()
            except (SingularityError, OSError, TimeoutError) as error:
                said = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
                self.world.timeline.add("watch", said)
            await asyncio.sleep(max(0.1, EVERY_S - (self.world.timeline.now - began)))

    async def look(self) -> None:
        """One look at everything."""
        world = self.world
        if world.up_code() is not None and not world.ending.is_set() and not world.is_starting:
            text = f"up ended with code {world.up_code()}: {world.up_said()}"
            world.timeline.violate("up", "platform", text, key=str(world.starts))
            await world.ensure_up()
        self._looks += 1
        found = await self._documents()
        for subject in self.subjects:
            if subject.session and subject.session in found:
                subject.see(found[subject.session])
        if found or self.cluster:
            self._keep_time()
        self._look_for_strangers(found)
        for subject in self.subjects:
            self._look_at(subject)
            if isinstance(subject, CsvWriter):
                subject.look_at_file()
        if self._looks % REALITY_EVERY == 0:
            roles = await world.find()
            live = sum(1 for s in found.values() if s["process_state"] == "live")
            self.growth.look(world.timeline.now, roles, live)
            if self._calm:
                await self._compare(roles)
                await self._look_at_ended(roles)

    async def _documents(self) -> dict[str, Json]:
        """Every session of the ledger that has not ended, and those of the subjects."""
        self._calm = False
        try:
            service = self.world.direct(timeout=4.0)
            self.cluster = await service.cluster()
            found = {s["id"]: s for s in await service.sessions("active")}
            for subject in self.subjects:
                if subject.session and subject.session not in found:
                    with contextlib.suppress(SingularityError):
                        found[subject.session] = await service.get_session(subject.session)
        except (Unavailable, OSError):
            return {}
        connected = [n["id"] for n in self.cluster["nodes"] if n["connected"]]
        everybody = len(connected) == len(self.world.nodes)
        self._calm = everybody and not self.world.off and not self.world.disk.trouble
        self._calm = self._calm and not self.world.stopped and not self.world.is_starting
        return found

    def _look_for_strangers(self, found: dict[str, Json]) -> None:
        """Each session that has not ended was begun by somebody here: by its subject, which knows
        it after a moment, or as a fork, which has an end of its own."""
        ours = {session for s in self.subjects for session in (s.session, *s.history)}
        strange = [
            session
            for session, doc in found.items()
            if session not in ours and not doc["forked_from"] and session not in self.world.ended
        ]
        for session in strange:
            since = self._odd.setdefault((session, "stranger"), self.world.calm_s)
            if self.world.calm_s - since > PATIENCE_S:
                doc = found[session]
                text = f"nobody began {doc['name']} of {doc['user']}: {doc['reason']}"
                self.world.timeline.violate("leak", session, text, "stranger")
                self.world.timeline.count("leaked")
        for key in [k for k in self._odd if k[1] == "stranger" and k[0] not in strange]:
            del self._odd[key]

    def _keep_time(self) -> None:
        now = self.world.timeline.now
        if self._calm:
            self.world.calm_s += min(3.0, now - getattr(self, "_last", now))
        self._last = now

    # -- stuck ------------------------------------------------------------------------------------

    def _look_at(self, subject: Subject) -> None:
        doc = subject.doc
        if not doc or doc.get("id") != subject.session or not self._calm:
            return
        process, device = doc["process_state"], doc["device_state"]
        state = (subject.session, process, device, doc["epoch"], doc["updated_at"])
        self._patience(subject, "passing", state, process in _PASSING or device in _CHANGING)
        self._patience(subject, "waiting", state[:4], self._waits_in_vain(doc))
        works = process == "live" and device == "held" and doc["busy"] and not doc["held_back"]
        self._patience(subject, "silent", (subject.session, subject.progress_at), works)
        if process in ENDED and not doc["reason"]:
            self.world.timeline.violate(
                "told", subject.name, f"{doc['id']} is {process}: no reason"
            )

    def _waits_in_vain(self, doc: Json) -> bool:
        """Whether it waits for devices although its node has enough free ones."""
        if doc["process_state"] != "live" or doc["device_state"] != "waiting" or doc["held_back"]:
            return False
        free = [
            d
            for d in self.cluster.get("devices", ())
            if d["node"] == doc["node"] and d["session"] is None and not d["drained"]
        ]
        return len(free) >= doc["virtual_devices"] and not self.world.draining

    def _patience(self, subject: Subject, rule: str, what: Any, holds: bool) -> None:
        key = (subject.name, rule)
        if not holds:
            self._stuck.pop(key, None)
            return
        known, since = self._stuck.get(key, (None, 0.0))
        if known != what:
            self._stuck[key] = (what, self.world.calm_s)
        elif self.world.calm_s - since > PATIENCE_S:
            doc = subject.doc
            text = f"{doc['id']} is {doc['process_state']}/{doc['device_state']} on {doc['node']}"
            text += f" without a change for {PATIENCE_S:g} calm seconds: {doc['reason']}"
            self.world.timeline.violate("stuck", subject.name, text, key=f"{rule} {what}")

    # -- ledger and machine -----------------------------------------------------------------------

    async def _compare(self, roles: list[processes.Found]) -> None:
        """The ledger says what the machine has, where nothing is changing."""
        ledgers = {
            node: await asyncio.to_thread(self.world.agent_ledger, node)
            for node in self.world.nodes
        }
        for subject in self.subjects:
            doc = subject.doc
            if not doc or doc.get("id") != subject.session:
                continue
            before = self._before.get(subject.session)
            self._before[subject.session] = doc
            still = before is not None and all(
                before[k] == doc[k] for k in ("process_state", "device_state", "epoch", "node")
            )
            if not still or subject.verb:
                continue
            odd = await asyncio.to_thread(self._oddities, doc, ledgers, roles)
            for what in odd:
                since = self._odd.setdefault((subject.session, what), self.world.calm_s)
                if self.world.calm_s - since > 15.0:
                    self.world.timeline.violate(
                        "reality", subject.name, f"{doc['id']}: {what}", what
                    )
            for key in [k for k in self._odd if k[0] == subject.session and k[1] not in odd]:
                del self._odd[key]

    def _oddities(
        self, doc: Json, ledgers: dict[str, dict[str, Json]], roles: list[processes.Found]
    ) -> list[str]:
        """What of a session is on the machine and not in the ledger, or the other way round."""
        session, node, odd = doc["id"], doc["node"], []
        runners = []
        for name, ledger in ledgers.items():
            record = ledger.get(session)
            if record is None or record["life"] != "live" or not record["process"]:
                continue
            pid, started = record["process"]
            now = processes.read_process(pid)
            alive = now is not None and now.started == started and not now.zombie
            if alive and not processes.is_stopped(pid):
                runners.append(name)
            if name == node and doc["process_state"] == "live" and not alive:
                odd.append(f"its process on {node} has ended and the ledger has it live")
        if len(runners) > 1:
            odd.append(f"it runs on {' and '.join(runners)} at once")
        if doc["process_state"] == "suspended":
            if runners:
                odd.append(f"it is suspended and runs on {runners[0]}")
            relays = {f.pid for f in roles if f.role in ("relay", "proxy")}
            left = processes.of_session(session) - relays
            if left:
                odd.append("it is suspended and has processes")
        if doc["process_state"] == "live" and doc["device_state"] == "held":
            record = ledgers.get(node, {}).get(session)
            if record is not None:
                theirs = sorted(set(record["devices"]))
                if theirs != sorted(set(doc["devices"])):
                    odd.append(f"the ledger has it on {doc['devices']}, its node on {theirs}")
        for device in self.cluster.get("devices", ()):
            holder = device["session"] == session and device["node"] == node
            if holder and doc["device_state"] in ("none", "parked", "waiting"):
                odd.append(f"{device['id']} is its own though it is {doc['device_state']}")
        return odd

    async def _look_at_ended(self, roles: list[processes.Found]) -> None:
        """Nothing is left of the sessions that have ended."""
        world = self.world
        for subject in self.subjects:
            for session in subject.history:
                world.ended.setdefault(session, world.timeline.now)
        for session, _ in list(world.ended.items()):
            left = await asyncio.to_thread(self.left_of, session, roles)
            for what in left:
                since = self._odd.setdefault((session, what), world.calm_s)
                if world.calm_s - since > LEFT_S:
                    world.timeline.violate("leak", session, what)
                    world.timeline.count("leaked")
            for key in [k for k in self._odd if k[0] == session and k[1] not in left]:
                del self._odd[key]

    def left_of(self, session: str, roles: list[processes.Found]) -> list[str]:
        """What there still is of an ended session: processes, folders, sockets, rings."""
        left = []
        if processes.of_session(session):
            left.append("processes of it still run")
        if any(f.role == "relay" and f.session == session for f in roles):
            left.append("its relay still runs")
        if any(f.role == "proxy" and f.session == session[:6] for f in roles):
            left.append("a device proxy of it still runs")
        with contextlib.suppress(Unavailable):
            settings = self.world.settings
            for node in self.world.nodes:
                for base in (settings.runtime_dir, settings.shm_dir):
                    for path in Path(f"{base}-{node}").glob(f"*/{session}*"):
                        left.append(f"{path.parent.name}/{path.name} of {node} is left")
                    if Path(f"{base}-{node}", session).exists():
                        left.append(f"{Path(base).parent}/.../{session} of {node} is left")
        return left
