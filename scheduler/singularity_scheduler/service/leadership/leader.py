"""This service among others on the same ledger: it leads, or stands by until it may.

Who leads renews its leadership three times in `lease_s`. Who cannot do so in time decides, sends
and answers nothing any more from the moment at which another service may have taken over.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
from typing import Any
from uuid import uuid4

from singularity_proxy.errors import SingularityError, Unavailable
from traitlets import Float, Unicode, default
from traitlets.config import LoggingConfigurable

from singularity_scheduler.service.ledger.ledger import Ledger
from singularity_scheduler.service.ports import (
    CommandCallback,
    ConnectionCallback,
    EventCallback,
    Fleet,
    Hello,
)

from .election import Deposed, Standing, boot_clock

IDENTITY = "service.id"
"""In the state folder: who this service is among others on the same ledger."""


class Leader(LoggingConfigurable):  # type: ignore[misc]
    """One per run of the service; made by `SchedulerApp`."""

    lease_s = Float(
        15.0,
        min=1.0,
        config=True,
        help="""Seconds for which the leadership of a ledger holds unless it is renewed. A second
        service on the same ledger takes over so long after the first one was cut off or stood
        still; one that was stopped, or is started again with the same `state_dir`, gives way at
        once. The database may be away for so long before nodes hear nothing from the scheduler.""",
    )
    name = Unicode(
        config=True,
        help="""What other services on the same ledger call this one, at most 255 characters.
        Default: the machine and the process.""",
    )

    @default("name")  # type: ignore[untyped-decorator]
    def _default_name(self) -> str:
        return f"on {platform.node() or 'this machine'}, process {os.getpid()}"

    def __init__(self, holder: str, **kwargs: Any) -> None:
        """`holder`: an identity that no other running service has, see `identity`."""
        super().__init__(**kwargs)
        self._holder = holder
        self._until = 0.0
        self.standing = Standing(False, 0, "", "")

    @property
    def sentence(self) -> str:
        """Why this service does not work, for people; "" when it leads."""
        if self.standing.mine:
            return ""
        if not self.standing.name:
            return "this scheduler service does not lead yet: try again in a moment"
        return (
            f"the scheduler service {self.standing.name} leads, and this one stands by for it: "
            "nothing was done, ask that one"
        )

    async def take(self, ledger: Ledger) -> bool:
        """Lead, if nobody else does."""
        self.standing = await ledger.lead(self._holder, self.name, self.lease_s)
        self._until = self.standing.until
        return self.standing.mine

    async def wait(self, ledger: Ledger) -> None:
        """Stand by until this service leads; never gives up."""
        told = ""
        while True:
            try:
                if await self.take(ledger):
                    return
                sentence = self.sentence
            except SingularityError as error:
                sentence = error.message
            if sentence != told:
                self.log.warning("%s", sentence)
                told = sentence
            await asyncio.sleep(self.lease_s / 6)

    async def keep(self, ledger: Ledger) -> str:
        """Renew the leadership until it is lost; why, in a sentence."""
        while True:
            await asyncio.sleep(self.lease_s / 3)
            renewal = asyncio.ensure_future(ledger.renew())
            try:
                left = max(self._until - boot_clock(), 0.1)
                self._until = await asyncio.wait_for(asyncio.shield(renewal), left)
            except Deposed as error:
                return self._lost(error.message)
            except (asyncio.TimeoutError, TimeoutError):
                renewal.add_done_callback(_ignored)
                return self._lost(f"the scheduler's ledger ({ledger.place}) does not answer")
            except SingularityError as error:
                self.log.error("the leadership was not renewed: %s", error.message)
                if boot_clock() >= self._until:
                    return self._lost(error.message)

    def _lost(self, why: str) -> str:
        self.standing = Standing(False, self.standing.epoch, self.standing.ledger, "")
        return why

    def check(self) -> None:
        """`Unavailable` unless this service leads now, whatever happens elsewhere."""
        if not self.standing.mine or boot_clock() >= self._until:
            raise Unavailable(
                self.sentence
                or "this scheduler service was cut off from its ledger for too long, so another "
                "one may lead by now; nothing was changed: try again in a moment"
            )


class GuardedFleet:
    """A fleet that sends nothing once this service may no longer lead."""

    def __init__(self, fleet: Fleet, leader: Leader) -> None:
        self.bare = fleet
        """The fleet itself."""
        self._leader = leader

    async def call(
        self, node: str, method: str, timeout: float | None = 60.0, **params: Any
    ) -> Any:
        self._leader.check()
        return await self.bare.call(node, method, timeout, **params)

    async def hello(self) -> list[Hello]:
        self._leader.check()
        return await self.bare.hello()

    def lead(self, ledger: str, epoch: int) -> None:
        self.bare.lead(ledger, epoch)

    def on_event(self, callback: EventCallback) -> None:
        self.bare.on_event(callback)

    def on_command(self, callback: CommandCallback) -> None:
        self.bare.on_command(callback)

    def on_connection(self, callback: ConnectionCallback) -> None:
        self.bare.on_connection(callback)

    async def start(self) -> None:
        await self.bare.start()

    async def stop(self) -> None:
        await self.bare.stop()


def identity(state_dir: str) -> str:
    """Who a service with this state folder is, also after a restart: nobody else runs with it (see
    `app.lock_state_dir`). On another machine it is somebody else, should the folder be copied."""
    path = os.path.join(state_dir, IDENTITY)
    try:
        with open(path, encoding="ascii") as file:
            known = file.read().strip()
    except FileNotFoundError:
        known = ""
    if not known:
        known = uuid4().hex
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="ascii") as file:
            file.write(known + "\n")
    return f"{known}@{socket.gethostname()}"[:64]


def _ignored(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
