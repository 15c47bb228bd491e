"""What is really there while the scheduler core is told this and that: processes, devices, store.

`Truth` plays the agents' part: it carries commands out, and says what an agent knows. It keeps the
promises that are about the machine: nobody runs twice, no device serves two, nobody comes back from
what is not in the store.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from singularity_scheduler.core.state.stored import CheckpointRef, LossReport
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import AgentFacts, SessionView
from support.scheduler_core import World

NODES = {"n1": 2, "n2": 3}
"""Node -> devices."""


@dataclass
class Process:
    """A session's processes on a node, as they are."""

    view: SessionView
    epoch: int = 0
    incarnation: int = 1
    work: int = 0
    devices: tuple[str, ...] = ()
    saved: bool = False
    waiting: bool = False
    frozen: bool = False


@dataclass
class Agent:
    """A node's agent and what runs there. `answers`: what each command was answered."""

    node: str
    connected: bool = True
    processes: dict[str, Process] = field(default_factory=dict)
    answers: dict[tuple[Any, ...], ev.Event] = field(default_factory=dict)
    lapsed: bool = False
    """Its leases have run out: everything is parked and stands still."""


class Broken(AssertionError):
    """A promise did not hold; the message has the seed's story."""


class Truth:
    """The agents and the store of a `World`."""

    world: World

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.story: list[str] = []
        self.agents = {node: Agent(node) for node in NODES}
        self.store: dict[str, list[tuple[CheckpointRef, int, int]]] = {}
        """session -> (checkpoint, work, incarnation), oldest first."""
        self.heads: dict[str, int] = {}
        """session -> the newest epoch that the store knows."""
        self.begun: set[str] = set()
        """Sessions whose processes have run."""

    def unknown(self, action: ev.Action) -> ev.Event | None:
        """What comes of a command for a session that its agent does not know."""
        raise NotImplementedError

    def hold(self, condition: bool, sentence: str) -> None:
        """Raise `Broken` with the sentence, and what happened before, unless that holds."""
        if not condition:
            raise Broken(f"{sentence}\n" + "\n".join(self.story[-60:]))

    def look(self) -> None:
        """Nobody runs twice, no device serves two."""
        for node, agent in self.agents.items():
            users: dict[str, str] = {}
            for sid, process in agent.processes.items():
                for device in () if process.frozen else process.devices:
                    other = users.setdefault(device, sid)
                    self.hold(other == sid, f"{device} of {node} serves {other} and {sid}")
        for sid in {sid for agent in self.agents.values() for sid in agent.processes}:
            runs = [
                node
                for node, agent in self.agents.items()
                if sid in agent.processes and not agent.processes[sid].frozen
            ]
            self.hold(len(runs) < 2, f"{sid} runs on {runs}")

    def perform(self, agent: Agent, action: ev.Action, process: Process | None) -> ev.Event | None:
        """Carry a command out, as an agent without trouble would; what it answers."""
        sid, epoch = action.session, action.epoch
        if isinstance(action, ev.Start):
            agent.processes.setdefault(sid, Process(self.world.known[sid]))
            self.begun.add(sid)
            return ev.Started(sid)
        if isinstance(action, ev.End):
            agent.processes.pop(sid, None)
            return ev.Ended(sid, None, action.node)
        if isinstance(action, ev.Fence):
            agent.processes.pop(sid, None)
            return ev.Fenced(sid, epoch, action.seq, action.node)
        if isinstance(action, ev.Resume):
            return self.resume(agent, action)
        if process is None:
            return self.unknown(action)
        process.epoch = max(process.epoch, epoch)
        if isinstance(action, ev.Attach | ev.Resize):
            process.devices, process.saved, process.waiting = action.devices, True, False
            done = ev.Attached if isinstance(action, ev.Attach) else ev.Resized
            return done(sid, epoch)
        if isinstance(action, ev.Park):
            process.devices, process.saved = (), True
            return ev.Parked(sid, epoch)
        if isinstance(action, ev.TakeCheckpoint):
            return ev.CheckpointTaken(sid, self.put(process, action.seq, action.name or "", epoch))
        if isinstance(action, ev.Suspend):
            reference = self.put(process, action.seq, action.name, epoch)
            del agent.processes[sid]
            return ev.Suspended(sid, epoch, action.seq, reference, 100.0)
        raise AssertionError(action)

    def put(self, process: Process, seq: int, name: str, epoch: int) -> CheckpointRef:
        """A checkpoint of a process goes to the store."""
        sid = process.view.id
        self.hold(epoch >= self.heads.get(sid, 0), f"{sid} publishes with epoch {epoch}")
        stored = self.store.setdefault(sid, [])
        reference = CheckpointRef(
            f"{sid}-{len(stored):03}", self.world.now, 1 << 20, "process", name,
            incarnation=process.incarnation,
        )  # fmt: skip
        stored.append((reference, process.work, process.incarnation))
        return reference

    def resume(self, agent: Agent, action: ev.Resume) -> ev.Event | None:
        """Bring a session back from the store, unless a newer epoch has been there."""
        sid = action.session
        if action.epoch < self.heads.get(sid, 0):
            return None
        found = [
            x for x in self.store.get(action.source or sid, ()) if x[0].id == action.checkpoint
        ]
        self.hold(bool(found), f"{sid} is to come back from {action.checkpoint}")
        self.heads[sid] = action.epoch
        process = Process(self.world.known[sid], action.epoch, action.incarnation)
        process.work, process.saved = found[0][1], True
        agent.processes[sid] = process
        self.begun.add(sid)
        loss = LossReport("process", ("its process",), (), False, 7, action.checkpoint)
        return ev.Resumed(sid, action.epoch, action.seq, loss)

    def facts(self, agent: Agent) -> tuple[AgentFacts, ...]:
        """What the agent says of its sessions."""
        return tuple(
            AgentFacts(
                id=sid,
                alive=True,
                epoch=p.epoch,
                devices=p.devices,
                saved=p.saved,
                waiting=p.waiting,
                busy=None,
                user=p.view.user,
                kind=p.view.kind.value,
                tier=p.view.tier.value,
                virtual_devices=p.view.virtual_devices,
                name=p.view.name,
                incarnation=p.incarnation,
            )
            for sid, p in sorted(agent.processes.items())
        )
