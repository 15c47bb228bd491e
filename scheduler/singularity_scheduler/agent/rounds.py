"""The agent's rounds: twice a second it looks whether leases ran out and how the sessions are.

Without them no lease of the node lapses and nothing starts them again. So whatever goes wrong with
one session, or one part, keeps no other from its turn; it is logged once for each kind of error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from singularity_proxy.capsule.launcher import trim_log

from .devices.control import DeviceKeeper
from .node import Node
from .rights.leases import boot_clock
from .sessions.lifecycle import Lifecycle
from .sessions.live import LiveSession
from .sessions.steps import tell_steps

log = logging.getLogger("singularity.agent")

ROUND_S = 0.5
"""How often waiting sessions and leases are looked at (a lease that ends sooner is on time)."""

LOGS_EVERY = 4
"""Log files are trimmed every this many rounds."""

LOG = "agent.log"
"""In the state folder: what the agent says, when the fleet started it."""


class Rounds:
    """One object per agent; `run` until cancelled. `on_idle` is called when the agent has had
    neither a scheduler nor a session for `idle_exit_s` seconds (0: never)."""

    def __init__(
        self,
        node: Node,
        devices: DeviceKeeper,
        lifecycle: Lifecycle,
        idle_exit_s: float,
        on_idle: Callable[[], None],
    ) -> None:
        self._node = node
        self._devices = devices
        self._lifecycle = lifecycle
        self._idle_exit_s = idle_exit_s
        self._on_idle = on_idle
        self._idle_since: float | None = None
        self._told: WeakKeyDictionary[object, set[type[Exception]]] = WeakKeyDictionary()
        """The session or part -> its kinds of errors that were logged."""

    async def run(self) -> None:
        count = 0
        while True:
            deadline = self._node.leases.next_deadline()
            pause = ROUND_S if deadline is None else min(ROUND_S, deadline - boot_clock())
            await asyncio.sleep(max(0.01, pause))
            count += 1
            self.look(count % LOGS_EVERY == 0)

    def look(self, trim: bool) -> None:
        """One round. Raises nothing."""
        node = self._node
        with self._kept_going(node.lease, "the lease of the node"):
            node.lease.look()
        with self._kept_going(node.leases, "the leases of the sessions"):
            self._lapse()
        for session, live in list(node.sessions.items()):
            with self._kept_going(live, f"session {session}"):
                self._look_at(live, trim)
        if trim:
            with self._kept_going(self, "the agent's own files"):
                trim_log(os.path.join(node.settings.state_dir, LOG), node.settings.log_bytes)
                if node.stores.garbage_due:
                    node.spawn(node.stores.collect(), "collection of checkpoint data")
        self._check_idle()

    def _lapse(self) -> None:
        node = self._node
        lapsed = node.leases.lapse(boot_clock())
        for session in lapsed:  # each is named once
            live = node.sessions.get(session)
            if live is not None and live.record.alive:
                node.spawn(self._devices.fence(live), "fence of a session")
        if lapsed:
            node.try_save_leases()

    def _look_at(self, live: LiveSession, trim: bool) -> None:
        tell_steps(self._node, live)
        if live.waiting and live.record.alive:
            self._devices.check_waiting(live)
        if trim and live.record.alive:
            self._lifecycle.trim_logs(live)
            self._lifecycle.histories.look(live)

    @contextlib.contextmanager
    def _kept_going(self, part: object, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            told = self._told.setdefault(part, set())
            if type(error) not in told:
                told.add(type(error))
                log.exception("%s: it could not be looked at; this error is told once", name)

    def _check_idle(self) -> None:
        now = boot_clock()
        used = self._node.service is not None or any(
            live.record.alive for live in self._node.sessions.values()
        )
        if used or self._idle_exit_s <= 0:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= self._idle_exit_s:
            log.info("no scheduler and no session for %g s: ending", self._idle_exit_s)
            self._on_idle()
