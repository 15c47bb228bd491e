"""A session that lives on this node: its ledger record and everything that is open for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import Any

from singularity_proxy.capsule.launcher import Capsule
from singularity_proxy.capsule.lease_word import LeaseWord
from singularity_proxy.capsule.process import ProcessWatch
from singularity_proxy.elastic.coordinator import Barrier

from singularity_scheduler.agent.devices.proxies import Proxy
from singularity_scheduler.agent.ranks.joint import Joint
from singularity_scheduler.agent.relays.relay import Relay
from singularity_scheduler.agent.store.savings import Savings

from .record import SessionRecord
from .rings import RingSet
from .socket import SessionSocket
from .steps import StepCount
from .use import UseWatch


class LiveSession:
    """Made by `lifecycle`; its device side is driven by `control`. Holds no logic of its own."""

    def __init__(self, record: SessionRecord, rings: RingSet, socket: SessionSocket) -> None:
        self.record = record
        self.rings = rings
        self.socket = socket
        self.capsule: Capsule | None = None
        """The kernel or run; None in a joined session."""
        self.word: LeaseWord | None = None
        """Until when that may run; None where it has no namespaces, and once it has ended."""
        self.joined: ProcessWatch | None = None
        """The first process of a joined session."""
        self.relay: Relay | None = None
        """None: it has none, or it is on another node."""
        self.bridge: Capsule | None = None
        """To the other parts of its gang; None: it is no part of one."""
        self.told_away = True
        """Whether the relay may believe that the session is away."""
        self.positions: dict[str, dict[str, Any] | None] = {}
        """Checkpoints that the relay was told of, and where its connection stood at each."""
        self.owner: ProcessWatch | None = None
        self.proxies: dict[str, Proxy] = {}
        """By physical device, while attaching, held or parking."""
        self.off_device: dict[str, Proxy] = {}
        """Proxies that the driver took off the physical device that is the key; it is free."""
        self.lock = asyncio.Lock()
        """Held by whoever changes the device side; the end of a session kills proxies first, so
        that a holder gives up, and takes it then."""
        self.barrier: Barrier | Joint | None = None
        """Its ranks stand by this one; see `barrier`."""
        self.waiting = False
        """A worker waits for a device and the service was told so."""
        self.told_need = 0.0
        self.deaths: deque[tuple[float, int]] = deque(maxlen=8)
        """When proxies of this session died (CLOCK_MONOTONIC), and how many records were done."""
        self.savings = Savings()
        self.cancel = threading.Event()
        """Set to give up the resume that is under way."""
        self.reconciled: list[str] = []
        """What a resume did to the user's own files, one sentence each."""
        self.fenced = ""
        """Why the session must not go on here: it lives elsewhere, or is broken."""
        self.steps = StepCount()
        self.use = UseWatch()
        self.ending: asyncio.Task[Any] | None = None

    def report(self) -> dict[str, Any]:
        """The session as `hello` shows it."""
        quiet_s = self.use.quiet_s(time.monotonic())
        return {**self.record.report(self.waiting), "quiet_s": quiet_s}
