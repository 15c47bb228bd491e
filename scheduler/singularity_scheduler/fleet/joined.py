"""The nodes of other machines: they join at the service's one TLS port and dial it ever after.

Part of `MachineFleet`. Which node an agent is stands in its certificate, whatever it says, and it
speaks for that node alone. No node of the service's own machine can be among them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    SingularityError,
    Unavailable,
    Unsupported,
)
from singularity_proxy.membership import folder_probe
from singularity_proxy.membership.certificates import life_of
from singularity_proxy.wire.rpc import Certified, Handler, Peer
from singularity_proxy.wire.tls import (
    PROTOCOL,
    Care,
    Gate,
    answer_ping,
    format_place,
    keep_alive,
    load_identity,
    make_service_context,
    serve,
)

from .authority import Authority
from .base import AgentLink, Callbacks
from .book import Book
from .registry import Registry
from .settings import FleetSettings

if TYPE_CHECKING:
    from logging import Logger

    from singularity_scheduler.service.ports import Hello

LOOK_S = 5.0
"""How often it is looked whether the certificates of connected nodes still count."""

HELLO_S = 10.0


class JoinedNodes:
    """Made by `MachineFleet`. `is_local` says whether a node is one of this machine; `version` is
    that of this software."""

    def __init__(
        self,
        registry: Registry,
        callbacks: Callbacks,
        is_local: Callable[[str], bool],
        log: Logger,
        version: str,
        care: Care | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        self._registry = registry
        self._callbacks = callbacks
        self._is_local = is_local
        self._log = log
        self._version = version
        self._care = care or Care()
        self._look_s = look_s
        self._links: dict[str, AgentLink] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._settings: FleetSettings
        self._authority: Authority

    async def start(self) -> None:
        """Listen. Idempotent; raises `Conflict`, `Unavailable`, and `NotFound` without a fleet."""
        if self._server is not None:
            return
        self._settings, self._authority = self._registry.settings(), self._registry.authority()
        identity = self._authority.certify_service(time.time())
        context = make_service_context(self._authority.pem, identity)
        strangers: dict[str, Handler] = {
            "fleet.authority": self._tell_authority,
            "fleet.probe": self._probe,
            "fleet.join": self._join,
        }
        gate = Gate(self._handlers_for, strangers, self._closed)
        where = self._settings.listen, self._settings.port
        self._server = await serve(*where, context, gate, self._care)
        self._spawn(self._look_after(context, life_of(identity).half))
        self._log.info("nodes of other machines are listened for at %s", format_place(*where))

    async def stop(self) -> None:
        """Hang up; the agents and their sessions go on, and dial again. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await asyncio.gather(*(link.close() for link in self._links.values()))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def has(self, node: str) -> bool:
        """Whether `node` has been connected since this service started."""
        return node in self._links and bool(self._links[node].node)

    async def hello(self) -> list[Hello]:
        """`hello` of every agent that is connected."""

        async def ask(link: AgentLink) -> Hello | None:
            with contextlib.suppress(Unavailable):
                answer: Hello = await link.call("hello", HELLO_S, {})
                return {**answer, "far": True}
            return None

        connected = [link for link in self._links.values() if link.connected]
        told = await asyncio.gather(*map(ask, connected))
        return [hello for hello in told if hello is not None]

    async def call(
        self, node: str, method: str, timeout: float | None, params: dict[str, Any]
    ) -> Any:
        """Call the agent of `node`; see `AgentLink.call`."""
        return await self._links[node].call(method, timeout, params)

    # -- who has no certificate yet ---------------------------------------------------------------

    async def _tell_authority(self, _: Peer, __: dict[str, Any]) -> Any:
        pem = self._authority.pem.decode()
        return {"authority": pem, "protocol": PROTOCOL, "version": self._version}

    async def _probe(self, peer: Peer, params: dict[str, Any]) -> Any:
        """Begin to try whether folders are shared, for who has a token."""
        token, node = _text(params, "token"), _text(params, "node")
        self._registry.book().check_token(token, node, self._registry.clock())
        self._refuse_local(node)
        probes: list[folder_probe.Probe] = peer.data.get("probes") or []
        if "probes" not in peer.data:
            peer.data["probes"] = probes = await asyncio.to_thread(self._begin_probes)
            if peer.closed.is_set():  # meanwhile: `_closed` has found none
                self._end_probes(peer)
        return {"folders": [p.to_json() for p in probes], "store": self._settings.store}

    def _begin_probes(self) -> list[folder_probe.Probe]:
        folders = {
            "the checkpoint store": self._settings.store,
            "the folder of homes": self._settings.homes,
        }
        with contextlib.ExitStack() as begun:
            probes = []
            for what, path in folders.items():
                if path:
                    probes.append(folder_probe.begin(what, path))
                    begun.callback(folder_probe.end, probes[-1])
            begun.pop_all()  # all of them are there: `_closed` ends them
        return probes

    async def _join(self, peer: Peer, params: dict[str, Any]) -> Any:
        """Give out a certificate, once for each token."""
        token, node = _text(params, "token"), _text(params, "node")
        request = _text(params, "request").encode()
        self._registry.book().check_token(token, node, self._registry.clock())
        self._refuse_local(node)
        if "probes" not in peer.data:
            raise BadRequest("a node joins after it was asked for its folders; nothing was done")
        for probe in peer.data["probes"]:
            await asyncio.to_thread(folder_probe.require_answer, probe)
        issued = await asyncio.to_thread(self._registry.admit, token, node, request)
        self._log.info("node %s has joined", node)
        return {"certificate": issued.pem.decode()}

    def _refuse_local(self, node: str) -> None:
        if self._is_local(node):
            raise Conflict(
                f"'{node}' is a node of the service's own machine, so no other one can be called "
                "so; nothing was done: make a token for another name",
                node=node,
            )

    def _closed(self, peer: Peer) -> None:
        """Any connection ended."""
        if isinstance(peer.who, Certified):
            self._links[peer.who.name].closed(peer)
        self._end_probes(peer)

    def _end_probes(self, peer: Peer) -> None:
        for probe in peer.data.get("probes", ()):  # not here: a network's file system may hang
            self._spawn(asyncio.to_thread(folder_probe.end, probe))

    # -- who has one ------------------------------------------------------------------------------

    def _handlers_for(self, who: Certified) -> dict[str, Handler]:
        """What a node may ask; raises `Forbidden` when its certificate counts no more."""
        self._registry.book().check(who.name, who.serial, self._registry.clock())
        link = self._links.setdefault(who.name, AgentLink(self._callbacks))
        return {
            **link.handlers(),
            "ping": answer_ping,
            "fleet.arrive": lambda peer, params: self._arrive(link, peer, params),
            "fleet.renew": self._renew,
        }

    async def _arrive(self, link: AgentLink, peer: Peer, params: dict[str, Any]) -> Any:
        """An agent has connected; it is led as soon as it has this answer."""
        node = _name(peer)
        self._refuse_local(node)
        if params.get("protocol") != PROTOCOL:
            raise Unsupported(
                f"the agent of '{node}' (version {params.get('version') or 'unknown'}) speaks "
                f"another protocol than this service (version {self._version or 'unknown'}); its "
                "sessions go on until their leases run out: install the same version on both"
            )
        if link.connected and link.instance != params.get("instance"):
            await self._refuse_second(link, node)
        self._spawn(self._lead(link, peer, node))
        return {}

    async def _refuse_second(self, link: AgentLink, node: str) -> None:
        """Raise `Conflict` when the agent that is connected still answers: then there are two."""
        try:
            await link.call("ping", self._care.ping_limit_s, {})
        except Unavailable:
            return
        except SingularityError:
            pass  # refused: an answer all the same
        raise Conflict(
            f"another agent is connected as the node '{node}' and answers, so this one is not let "
            "in: if its disk is a copy of the other's, let this machine join under its own name",
            node=node,
        )

    async def _lead(self, link: AgentLink, peer: Peer, node: str) -> None:
        try:
            await link.lead(peer, node)
        except Unavailable as error:
            self._log.warning("node %s: %s", node, error.message)
            peer.abort()
            return
        except SingularityError as error:
            self._log.error("%s", error.message)
            peer.refuse(error)
            return
        self._log.info("node %s is connected", node)
        await keep_alive(peer, self._care)
        why = peer.error.message if isinstance(peer.error, SingularityError) else peer.error
        self._log.info("the connection of node %s ended (%s)", node, why or "it was closed")

    async def _renew(self, peer: Peer, params: dict[str, Any]) -> Any:
        who, request = peer.who, _text(params, "request").encode()
        assert isinstance(who, Certified)
        issued = await asyncio.to_thread(self._registry.renew, who.name, who.serial, request)
        return {"certificate": issued.pem.decode()}

    # -- as time goes by --------------------------------------------------------------------------

    async def _look_after(self, context: ssl.SSLContext, renew_at: float) -> None:
        """Hang up on nodes whose certificates count no more; renew that of the service."""
        while True:
            await asyncio.sleep(self._look_s)
            try:
                self._hang_up_on_others(self._registry.book())
                if time.time() >= renew_at:
                    identity = self._authority.certify_service(time.time())
                    load_identity(context, identity)
                    renew_at = life_of(identity).half
            except SingularityError as error:  # the folder cannot be read now
                self._log.error("%s", error.message)

    def _hang_up_on_others(self, book: Book) -> None:
        for node, link in self._links.items():
            who = link.who
            if not isinstance(who, Certified):
                continue
            try:
                book.check(node, who.serial, self._registry.clock())
            except Forbidden as error:
                self._log.info("%s", error.message)
                link.refuse(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _name(peer: Peer) -> str:
    assert isinstance(peer.who, Certified)
    return peer.who.name


def _text(params: dict[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"'{name}' must be a text")
    return value
