"""The tunnel's end in the relay: a TCP port with CurveZMQ, and who may come in.

Besides the shim that is the agent of the node where the capsule is: its questions (`answer`) need
no service in between, and only who has the present incarnation's key can ask.

CurveZMQ and not TLS, because both processes have ZeroMQ anyway and nothing else: no certificates
to make, to date or to verify, both sides prove who they are, and a key pair is 80 characters in a
private file. Only the shim's key of the present incarnation is let in (ZAP, ZeroMQ RFC 27), so the
capsule of an earlier one is shut out even when it still runs somewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import zmq
from singularity_proxy.errors import BadRequest, Conflict, NotFound, SingularityError, to_wire
from zmq.utils import z85

from .clients import RelayError, bind
from .tunnel import MAX_PART_BYTES, Frame, Kind

DOMAIN = b"tunnel"
ZAP_ADDRESS = "inproc://zeromq.zap.01"

BEAT_MS = 5_000
SILENT_MS = 20_000
"""A connection without any sign for this long is closed; a frozen capsule makes a new one."""

FILE_VERSION = 1


def new_keys() -> dict[str, str]:
    """Fresh key pairs for both ends."""
    server_public, server_secret = zmq.curve_keypair()
    return {"server_public": _text(server_public), "server_secret": _text(server_secret)} | (
        new_client_keys()
    )


def new_client_keys() -> dict[str, str]:
    """A fresh key pair for the shim."""
    public, secret = zmq.curve_keypair()
    return {"public": _text(public), "secret": _text(secret)}


def _text(key: bytes) -> str:
    return key.decode("ascii")


class Gate:
    """Answers ZeroMQ's question whether a key may connect. One per context, before any bind."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(ZAP_ADDRESS)
        self.allowed: dict[bytes, set[str]] = {}
        """Public keys by domain; a domain that is not here lets nobody in."""

    def answer(self) -> None:
        """Serve what waits."""
        while True:
            try:
                found = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            peer, _, version, number, domain, _, _, mechanism, *credentials = found
            known = self.allowed.get(domain, set())
            welcome = mechanism == b"CURVE" and _text(z85.encode(credentials[0])) in known
            status, why = (b"200", b"OK") if welcome else (b"400", b"this key may not connect")
            self.socket.send_multipart([peer, b"", version, number, status, why, b"", b""])


class Listener:
    """The tunnel's port."""

    def __init__(
        self, context: zmq.Context[Any], keys: Mapping[str, str], ip: str, port: int, bind_s: float
    ) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.ipv6 = ":" in ip
        self.socket.set_hwm(0)  # bounded by the windows of the tunnel
        self.socket.maxmsgsize = MAX_PART_BYTES
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, BEAT_MS)
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENT_MS)
        self.socket.curve_server = True
        self.socket.curve_secretkey = keys["server_secret"].encode()
        self.socket.zap_domain = DOMAIN
        host = f"[{ip}]" if ":" in ip else ip
        try:
            if port:
                try:
                    bind(self.socket, f"tcp://{host}:{port}", "tunnel", bind_s)
                except RelayError:  # somebody took it meanwhile: the tunnel file says the new one
                    port = 0
            if not port:
                bind(self.socket, f"tcp://{host}:0", "tunnel", 0.0)
        except RelayError:
            self.socket.close()
            raise
        self.address = _text(bytes(self.socket.last_endpoint)).rstrip("\0")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def frames(self, limit: int) -> Iterator[tuple[bytes, list[bytes]]]:
        """What came in, at most `limit` frames: (connection, frame)."""
        for _ in range(limit):
            try:
                peer, *parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield peer, parts

    def send(self, peer: bytes, parts: Sequence[bytes], gone: Callable[[], None]) -> bool:
        """Send a frame; calls `gone` and returns False when the connection is no more."""
        try:
            self.socket.send_multipart([peer, *parts], zmq.NOBLOCK)
        except zmq.ZMQError:
            gone()
            return False
        return True


Handler = Callable[[dict[str, Any]], Any]


ASKED_WRONGLY = (
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a handler raises for words that a capsule has made up."""


def answer(frame: Frame, session: str, incarnation: int, handlers: Mapping[str, Handler]) -> Frame:
    """The answer to an ASK: what the handler returns, or why it was refused."""
    told: dict[str, Any]
    try:
        told = {"result": _ask(frame, session, incarnation, handlers)}
    except SingularityError as error:
        told = {"error": to_wire(error)}
    except ASKED_WRONGLY as error:
        wrong = BadRequest(f"the relay was asked wrongly ({type(error).__name__}: {error})")
        told = {"error": to_wire(wrong)}
    body = json.dumps(told, separators=(",", ":")).encode()
    return Frame(Kind.TOLD, incarnation, number=frame.number, parts=(body,))


def _ask(frame: Frame, session: str, incarnation: int, handlers: Mapping[str, Handler]) -> Any:
    name, question = frame.parts
    if name != session.encode():
        raise Conflict(f"this is the relay of session {session}")
    if frame.incarnation != incarnation:
        raise Conflict(
            f"incarnation {frame.incarnation} of session {session} is over: it is in incarnation "
            f"{incarnation}"
        )
    asked = json.loads(question)
    handler = handlers.get(asked["method"])
    if handler is None:
        raise NotFound(f"the relay has no method '{asked['method']}' for the node of a capsule")
    return handler(asked.get("params") or {})
