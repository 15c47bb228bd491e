"""One node agent of this machine: found or started, connected, watched, started again.

The agent is a process of its own that outlives the service: a restarted service finds it by the
file that the agent leaves in its state folder, and its sessions never notice. An agent that dies
is started again and takes its sessions over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from singularity_proxy.capsule.launcher import (
    CapsuleSpec,
    last_words,
    spawn,
    stripped_environment,
    trim_log,
)
from singularity_proxy.capsule.process import ProcessIdentity, ProcessWatch
from singularity_proxy.capsule.supervisor import RestartPolicy, keep_running, wait_for_silence
from singularity_proxy.errors import SingularityError, Unavailable

from .base import AgentLink, Callbacks

if TYPE_CHECKING:
    from logging import Logger

    from singularity_scheduler.service.ports import Hello

ANNOUNCEMENT = "agent.json"
"""The agent's file in its state folder: where it listens, and which process it is."""

START_LIMIT_S = 60.0
"""How long an agent may take from its start to its first answer (it may probe GPUs)."""

ANSWER_LIMIT_S = 5.0
"""How long an agent that lives may leave a connection unanswered."""

ALLOCATOR = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""In an agent's environment: its small objects come from the C library, which gives each free page
back (`agent.memory`). The interpreter's own allocator gives back whole megabytes alone, and keeps
more of them after each larger checkpoint. No thread keeps freed blocks for itself: up to seven of
each size, each in a page that could not be given back."""

LOG_BYTES = 1 << 20

POLICY = RestartPolicy(longest_pause_s=2.0)
"""An agent is started again for ever: its sessions cannot go on without it."""


class LocalAgent:
    """Made by `LocalFleet`, one per node. `command` gives the agent's command line, None: somebody
    else starts it. `silence_s`: an agent that does not answer for so long is ended; 0: never."""

    def __init__(
        self,
        state_dir: str,
        command: Callable[[], list[str]] | None,
        callbacks: Callbacks,
        log: Logger,
        silence_s: float = 0.0,
    ) -> None:
        self.state_dir = state_dir
        self._silence_s = silence_s
        self.link = AgentLink(callbacks)
        self._command = command
        self._log = log
        self._agent: ProcessWatch | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._dismissed = False
        """It was told to end, and is not started again."""

    async def open(self) -> Hello:
        """Find or start the agent, connect, and keep it so. Raises `Unavailable` with the agent's
        last words when it does not start."""
        self._dismissed = False
        hello = await self._connect()
        self.supervise()
        return hello

    def supervise(self) -> None:
        """Connect again whenever the connection breaks, and start the agent when it is gone."""
        if self._supervisor is None:
            self._supervisor = asyncio.ensure_future(keep_running(self, POLICY, self._tell))

    async def stop(self) -> None:
        """Close the connection; the agent and its sessions go on. Idempotent."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
        await self.link.close()
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    async def shut_down(self) -> None:
        """End its sessions and the agent itself, then close."""
        with contextlib.suppress(Unavailable):
            await self.call("shutdown", 6.0, {})
        if self._agent is not None:
            await self._agent.wait(2.0)
        await self.stop()

    async def call(self, method: str, timeout: float | None, params: dict[str, Any]) -> Any:
        """One call; after "shutdown" it is not started again."""
        if method == "shutdown":
            self._dismissed = True
        return await self.link.call(method, timeout, params)

    # -- the agent process ------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What people read in the log."""
        return f"the node agent of '{self.link.node}'" if self.link.node else "the node agent"

    @property
    def answered(self) -> bool:
        """True: a start returns only once the agent has answered; see `supervisor.Part`."""
        return True

    async def start(self) -> None:
        """Connect to the agent again, or start another one; see `supervisor.Part`."""
        await self._connect()
        self._log.info("%s answers again", self.name)

    async def ended(self) -> str:
        """Wait until the connection breaks, or the agent does not answer any more and was ended;
        see `supervisor.Part`."""
        closed = asyncio.ensure_future(self.link.wait_closed())
        silent = asyncio.ensure_future(self._fall_silent())
        try:
            await asyncio.wait({closed, silent}, return_when=asyncio.FIRST_COMPLETED)
            if self._dismissed:
                await asyncio.Event().wait()  # it is not started again; `stop` cancels this
            if closed.done():
                return "is gone"
            if self._agent is not None:
                self._agent.signal(signal.SIGKILL)
            await self.link.close()
            return f"did not answer for {self._silence_s:g} s and was ended"
        finally:
            closed.cancel()
            silent.cancel()

    async def _fall_silent(self) -> None:
        if not self._silence_s:
            await asyncio.Event().wait()
        await wait_for_silence(self._answers, lambda: self._silence_s)

    async def _answers(self, seconds: float) -> bool:
        try:
            await self.link.call("ping", seconds, {})
        except Unavailable:
            return False
        except SingularityError:  # an agent of another version, or of another service
            return True
        return True

    def _tell(self, how: str, again: bool) -> None:
        self._log.warning("%s %s; its sessions go on, it is started again", self.name, how)

    async def _connect(self) -> Hello:
        """Connect to the agent that runs, or start one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ANSWER_LIMIT_S
        while (announced := self._read_announcement()) is not None:
            try:
                hello = await self.link.connect(announced["socket"])
                self._watch(announced)
                return hello
            except Unavailable:
                if not self._is_alive(announced) and self._command is not None:
                    break
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(0.05)
        return await self._start_agent()

    async def _start_agent(self) -> Hello:
        if self._command is None:
            raise Unavailable(
                f"no node agent works in {self.state_dir} now, and another program is to start it "
                "(LocalFleet.start_agents is off)"
            )
        os.makedirs(self.state_dir, 0o700, exist_ok=True)
        log_path = os.path.join(self.state_dir, "agent.log")
        trim_log(log_path, LOG_BYTES)
        watch = ProcessWatch(
            spawn(
                CapsuleSpec(
                    argv=self._command(),
                    env={**ALLOCATOR, **stripped_environment(os.environ)},
                    cwd="/",
                    log_path=log_path,
                ),
                own_session=True,
            )
        )
        self._agent = watch
        with contextlib.suppress(ProcessLookupError):  # sessions do not go before others as we may
            niceness = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, watch.pid, max(0, niceness))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_LIMIT_S
        while loop.time() < deadline:
            announced = self._read_announcement()
            if announced is not None:
                # Ours, or one that somebody else started meanwhile: then ours has ended.
                with contextlib.suppress(Unavailable):
                    return await self.link.connect(announced["socket"])
            if not watch.alive:
                break
            await asyncio.sleep(0.02)
        words = last_words(log_path) or "it said nothing"
        raise Unavailable(f"the node agent did not start ({words}); the log is {log_path}")

    def _read_announcement(self) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self.state_dir, ANNOUNCEMENT), encoding="utf-8") as file:
                body: dict[str, Any] = json.load(file)
        except (FileNotFoundError, ValueError):
            return None
        return body if isinstance(body.get("socket"), str) else None

    def _is_alive(self, announced: dict[str, Any]) -> bool:
        identity = ProcessIdentity.from_json(announced.get("process"))
        try:
            return identity is not None and ProcessIdentity.of(identity.pid) == identity
        except ProcessLookupError:
            return False

    def _watch(self, announced: dict[str, Any]) -> None:
        identity = ProcessIdentity.from_json(announced.get("process"))
        if identity is not None and (self._agent is None or self._agent.identity != identity):
            if self._agent is not None:
                self._agent.close()
            self._agent = ProcessWatch(identity)
