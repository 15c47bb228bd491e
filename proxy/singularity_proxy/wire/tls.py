"""`rpc` between machines: mutual TLS 1.3 at one port of the service, which node agents dial.

Who a peer is stands in its certificate, which the fleet's authority has signed. Whoever shows none
is `Anonymous` and may only join. A line that is dead is noticed in three ways, because each of them
alone misses a case: keepalive (an idle line that is cut), TCP_USER_TIMEOUT (a line that is cut
with something on its way), and a ping of our own (a frozen machine: its kernel still answers).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from singularity_proxy.errors import (
    Conflict,
    Forbidden,
    SingularityError,
    Unavailable,
    to_wire,
)

from .limits import FLEET, JOINING, NODE, Held, Pace, too_many_peers
from .rpc import READ_BYTES, Anonymous, Certified, Handler, Peer, Who, Wire

SERVICE_NAME = "service.jupyter-singularity.internal"
"""What the service's certificate is for, at whatever address it is reached."""

HANDSHAKE_S = 10.0
"""In which a connection gets through the handshake."""

SHUTDOWN_S = 2.0
"""In which the other end of a closed connection says that it is."""

ANONYMOUS_S = 60.0
"""In which a machine without a certificate has joined."""

PROTOCOL = 1
"""Of what service and agent say to each other. An agent of another one is refused."""


@dataclass(frozen=True)
class Care:
    """How soon a dead line is noticed, in seconds. All of it is to be below the lease of a node."""

    keepalive_s: int = 1
    """Between probes of an idle line, three of which may fail."""
    unsent_s: float = 4.0
    """What was sent may stay unacknowledged for so long."""
    ping_s: float = 1.0
    ping_limit_s: float = 5.0
    """How long a ping may be unanswered: an event loop can be busy for a moment."""


def format_place(address: str, port: int) -> str:
    """Return ADDRESS:PORT, with brackets around an address of IPv6."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


# -- contexts ---------------------------------------------------------------------------------


def make_service_context(authority: bytes, identity: bytes) -> ssl.SSLContext:
    """Return what the service listens with. `identity`: its certificate and key (PEM)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL  # who is about to join has none
    context.load_verify_locations(cadata=authority.decode())
    context.num_tickets = 0  # a session that is resumed shows no certificate
    load_identity(context, identity)
    return context


def make_node_context(authority: bytes, identity: bytes = b"") -> ssl.SSLContext:
    """Return what a node dials with: it believes this authority alone. `identity`: its certificate
    and key (PEM); empty before it has joined."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks name and certificate
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority.decode())
    if identity:
        load_identity(context, identity)
    return context


def make_unproven_context() -> ssl.SSLContext:
    """Return a context that believes anybody: good for asking which authority there is, whose hash
    is compared then, and for nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def load_identity(context: ssl.SSLContext, pem: bytes) -> None:
    """Load certificate and key. `ssl` reads them from files only; this one is never on a disk."""
    fd = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        os.write(fd, pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


# -- connections ------------------------------------------------------------------------------


def bound_buffers() -> None:
    """Let asyncio's buffer of every TLS connection that this process makes from now on be no larger
    than what a peer reads at a time. It is 256 KiB by itself: more than a whole connection may take
    where there are 1,000 nodes. Called by who serves or dials, and not for whoever imports this:
    the bridges of ranks want the large one."""
    sslproto.SSLProtocol.max_size = READ_BYTES


def tune(sock: socket.socket, care: Care) -> None:
    """Have the kernel notice a dead line, and send at once what is said."""
    tcp, probes = socket.IPPROTO_TCP, 3
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, int(care.unsent_s * 1000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, care.keepalive_s)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, care.keepalive_s)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, probes)


async def keep_alive(peer: Peer, care: Care) -> None:
    """Ping the other end until the connection ends; end it when there is no answer in time. Both
    ends do: each has to notice by itself that the other is gone."""
    while not peer.closed.is_set():
        try:
            await peer.call("ping", care.ping_limit_s)
        except Unavailable as error:
            peer.error = peer.error or error
            peer.abort()
        except SingularityError:
            pass  # refused: an answer all the same
        await wait_closed(peer, care.ping_s)


async def wait_closed(peer: Peer, seconds: float) -> None:
    """Wait until the connection ends, or so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await peer.closed.wait()


async def answer_ping(_: Peer, __: dict[str, Any]) -> dict[str, Any]:
    """Serve `ping`: the event loop turns."""
    return {}


@dataclass
class Gate:
    """What a listening service does with those who come."""

    members: Callable[[Certified], dict[str, Handler]]
    """Handlers for a node with a certificate; raises `Forbidden` when that counts no more."""
    strangers: dict[str, Handler]
    """Handlers for who shows none."""
    on_close: Callable[[Peer], None] | None = None


async def serve(
    listen: str, port: int, context: ssl.SSLContext, gate: Gate, care: Care
) -> asyncio.Server:
    """Listen for nodes; raises `Conflict` when that cannot be. Who is refused gets a sentence."""
    bound_buffers()
    by_nodes, by_strangers = Held(FLEET), Held(JOINING)
    pace_of_strangers = Pace(JOINING)

    def made(transport: asyncio.Transport) -> Peer | None:
        who = identify(transport)
        ours = isinstance(who, Certified)
        held = Held(NODE, by_nodes) if ours else by_strangers
        try:
            handlers = gate.members(who) if isinstance(who, Certified) else gate.strangers
            if not held.admit():
                raise too_many_peers(FLEET if ours else JOINING)
        except SingularityError as error:
            line = json.dumps({"id": None, "error": to_wire(error)}).encode()
            transport.write(line + b"\n")
            transport.close()
            return None
        tune(transport.get_extra_info("socket"), care)
        pace = Pace(NODE) if ours else pace_of_strangers
        peer = Peer(transport, handlers, gate.on_close, held, pace, who)
        if not ours:
            asyncio.get_running_loop().call_later(ANONYMOUS_S, peer.abort)
        return peer

    try:
        return await asyncio.get_running_loop().create_server(
            lambda: Wire(made),
            listen,
            port,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
    except OSError as error:
        place = format_place(listen, port)
        raise Conflict(
            f"the service cannot listen for nodes at {place} ({error.strerror}): stop the program "
            "that uses this port, or change `port` in the fleet's settings.json; nodes of this "
            "machine work meanwhile",
            port=port,
        ) from None


def identify(transport: asyncio.Transport) -> Certified | Anonymous:
    """Tell who is at the other end of a TLS connection whose certificate was verified, if it showed
    one. Nothing else that it says makes it anybody."""
    certificate = transport.get_extra_info("peercert") or {}
    names = [
        value
        for part in certificate.get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    if len(names) == 1:
        return Certified(names[0], certificate["serialNumber"])
    address = transport.get_extra_info("peername")
    return Anonymous(str(address[0]) if address else "")


async def dial(
    address: str,
    port: int,
    context: ssl.SSLContext,
    handlers: dict[str, Handler] | None = None,
    on_close: Callable[[Peer], None] | None = None,
    care: Care | None = None,
    limit_s: float = 5.0,
) -> Peer:
    """Connect to the service. Raises `Unavailable` when it does not answer, and `Forbidden` when it
    is not the service of the authority that is believed. Whether it takes the certificate that it
    was shown is known after the first answer (TLS 1.3)."""
    bound_buffers()
    held, pace = Held(NODE), Pace(NODE)
    held.admit()

    def made(transport: asyncio.Transport) -> Peer:
        tune(transport.get_extra_info("socket"), care or Care())
        who: Who = identify(transport)
        return Peer(transport, handlers or {}, on_close, held, pace, who)

    place = format_place(address, port)
    try:
        async with asyncio.timeout(limit_s):
            _, wire = await asyncio.get_running_loop().create_connection(
                lambda: Wire(made),
                address,
                port,
                ssl=context,
                server_hostname=SERVICE_NAME,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
    except ssl.SSLCertVerificationError as error:
        raise Forbidden(
            f"what answers at {place} is not the service of this fleet ({error.verify_message}), "
            "so nothing was said to it: compare the address and the clocks, or join again",
            address=place,
        ) from None
    except TimeoutError:
        raise Unavailable(
            f"nobody answered at {place} within {limit_s:g} s", address=place
        ) from None
    except OSError as error:
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise Unavailable(f"nobody answers at {place} ({why})", address=place) from None
    assert wire.peer is not None
    return wire.peer
