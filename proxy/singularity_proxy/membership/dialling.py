"""The agent's connection to the service of its fleet: dialled, and dialled again for ever.

After the handshake the agent says that it has arrived (with TLS 1.3 a refused certificate is only
known at the first answer); then the service says `hello` and leads, as on the agent's own socket.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace

from singularity_proxy.errors import (
    Conflict,
    Forbidden,
    SingularityError,
    Unavailable,
    Unsupported,
)
from singularity_proxy.wire.rpc import Handler, Peer
from singularity_proxy.wire.tls import (
    PROTOCOL,
    Care,
    answer_ping,
    dial,
    format_place,
    keep_alive,
    make_node_context,
    wait_closed,
)

from .certificates import life_of, make_request, read_key
from .identity import Identity

log = logging.getLogger("singularity.agent")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
"""Between two attempts while nobody answers: a node must be back long before its lease ends."""

REFUSED_PAUSE_S = 10.0
"""Between two attempts after the service has said no: only somebody can change that."""

STEADY_S = 5.0
"""A connection that held so long is followed by the shortest pause."""

ARRIVE_S = 10.0

RENEW_LOOK_S = 3600.0
"""At least so often it is looked whether the certificate is to be renewed: clocks are set."""

RENEW_AGAIN_S = 60.0
"""Pause after a renewal that failed; there is half of the certificate's life for it."""


class Dialler:
    """One per agent that has joined a fleet; `run` until cancelled."""

    def __init__(
        self,
        state_dir: str,
        handlers: dict[str, Handler],
        on_close: Callable[[Peer], None],
        *,
        instance: str,
        version: str,
        care: Care | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._handlers = {"ping": answer_ping, **handlers}
        self._on_close = on_close
        self._arrival = {"protocol": PROTOCOL, "version": version, "instance": instance}
        self._care = care or Care()
        self._told = ""
        """What the log says of the connection, so that it says it once."""

    async def run(self) -> None:
        """Be connected, as far as that is in our power."""
        pause = FIRST_PAUSE_S
        while True:
            since = time.monotonic()
            try:
                identity = Identity.load(self._state_dir)  # anew: it may have joined again
                peer = await self._arrive(identity)
            except (Forbidden, Conflict, Unsupported) as error:
                self._tell(logging.ERROR, error.message)
                pause = REFUSED_PAUSE_S
            except SingularityError as error:
                self._tell(logging.WARNING, f"{error.message}; this node tries again")
            else:
                self._tell(logging.INFO, f"connected to the service at {_place(identity)}")
                why = await self._stay(peer, identity)
                self._tell(logging.WARNING, f"the connection to the service ended ({why})")
                if isinstance(peer.error, Forbidden | Conflict):
                    pause = REFUSED_PAUSE_S
            if time.monotonic() - since >= STEADY_S and pause < REFUSED_PAUSE_S:
                pause = FIRST_PAUSE_S
            # Not all agents at the same moment when a service comes back.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _arrive(self, identity: Identity) -> Peer:
        """Dial, and be let in. Raises the service's refusal, `Forbidden`, `Unavailable`."""
        ends = life_of(identity.certificate).ends
        if ends <= time.time():
            day = time.strftime("%Y-%m-%d %H:%M", time.gmtime(ends))
            raise Forbidden(
                f"the certificate of this node ran out at {day} UTC, so it cannot connect: let it "
                "join again, with `jupyter singularity fleet token "
                f"{identity.membership.node}` where the service runs"
            )
        where = identity.membership
        context = make_node_context(identity.authority, identity.pem)
        peer = await dial(
            where.address, where.port, context, self._handlers, self._on_close, self._care
        )
        try:
            await peer.call("fleet.arrive", ARRIVE_S, **self._arrival)
        except Unavailable:
            ended = peer.closed.is_set()
            peer.abort()
            if isinstance(peer.error, SingularityError):
                raise peer.error from None
            if not ended:
                raise
            raise Unavailable(
                f"the service at {_place(identity)} ended the connection without a word: it does "
                "not take this node's certificate, or is just stopping"
            ) from None
        except BaseException:
            peer.abort()
            raise
        return peer

    async def _stay(self, peer: Peer, identity: Identity) -> str:
        """Keep the connection until it ends; returns why it did."""
        jobs = [
            asyncio.ensure_future(keep_alive(peer, self._care)),
            asyncio.ensure_future(self._keep_renewed(peer, identity)),
        ]
        try:
            await peer.closed.wait()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            peer.abort()
        error = peer.error
        if error is None:
            return "the service closed it"
        return error.message if isinstance(error, SingularityError) else str(error)

    async def _keep_renewed(self, peer: Peer, identity: Identity) -> None:
        """Get a new certificate at half of the life of the one that there is."""
        while not peer.closed.is_set():
            left = life_of(identity.certificate).half - time.time()
            if left > 0:
                await wait_closed(peer, min(left, RENEW_LOOK_S))
                continue
            try:
                identity = await self._renew(peer, identity)
            except (SingularityError, OSError) as error:
                log.error("the certificate of this node was not renewed: %s", error)
                await wait_closed(peer, RENEW_AGAIN_S)

    async def _renew(self, peer: Peer, identity: Identity) -> Identity:
        request = make_request(read_key(identity.key)).decode()
        answer = await peer.call("fleet.renew", ARRIVE_S, request=request)
        renewed = replace(identity, certificate=str(answer["certificate"]).encode())
        life = life_of(renewed.certificate)
        renewed.save_certificate(self._state_dir)
        log.info("the certificate of this node was renewed for %.0f s", life.ends - life.begins)
        return renewed

    def _tell(self, level: int, text: str) -> None:
        if text != self._told:
            log.log(level, "%s", text)
            self._told = text


def _place(identity: Identity) -> str:
    return format_place(identity.membership.address, identity.membership.port)
