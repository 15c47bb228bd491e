"""The client-facing side of a relay: the five sockets of Jupyter's connection file.

Clients see a kernel: ROUTER sockets for shell, control and stdin, a publisher for iopub, and a
heartbeat that is answered here. Messages pass unread, signatures included. No other user reaches
them: they are unix sockets in a folder that is the user's alone (`place`), or TCP ports
with the CurveZMQ keys of the connection file; TCP without keys is refused.

A client that connects anew under the name it had (its session id) takes the place of its earlier
connection (ROUTER_HANDOVER), as a Jupyter server does for a page that is loaded again. Names are no
secret, but only processes of this user get far enough to say one.
"""

from __future__ import annotations

import errno
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import zmq

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
ROUTED = ("shell", "control", "stdin")

EXIT_USAGE = 2
EXIT_BUSY = 3

UNREAD_REQUESTS = 16
"""Requests that ZeroMQ may read ahead of the relay, per client: they are not on disk yet."""

UNSENT_OUTPUTS = 10_000
"""Messages that wait for one slow client; later ones pass it by, as with a kernel's own port."""

UNSENT_ANSWERS = 1_000
"""Answers per channel that wait for clients that are gone; the oldest go first."""

RETURN_S = 10.0
"""After a start of the relay: how long an answer waits for its client to connect again."""

SUBSCRIBE_S = 2.0
"""The same for outputs, until there are as many subscriptions as before."""

LINGER_MS = 500

MAX_PART_BYTES = 64 << 20
"""A client that sends a longer part of a message is disconnected before the part takes memory. A
Jupyter server takes 10 MiB from a page."""

LEAVE = b"singularity.leave"
"""Topic of iopub: a client that subscribes to it, on each of its sockets, is about to go."""


class RelayError(Exception):
    """Ends the process with `code`; the message is the one sentence on stderr."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def read_connection(path: str) -> dict[str, Any]:
    """The connection file at `path`, checked; raises `RelayError`."""
    info = read_json(path)
    try:
        for channel in CHANNELS:
            endpoint(info, channel)
        return info
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RelayError(
            f"the connection file {path} is not one of Jupyter's ({type(error).__name__}: {error})",
            EXIT_USAGE,
        ) from None


def read_json(path: str) -> dict[str, Any]:
    """The JSON object at `path`; raises `RelayError`."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
        return found
    except OSError as error:
        raise RelayError(
            f"the connection file {path} cannot be read ({error.strerror})", EXIT_USAGE
        ) from None
    except ValueError as error:
        raise RelayError(
            f"the connection file {path} is not one of Jupyter's ({error})", EXIT_USAGE
        ) from None


def endpoint(info: Mapping[str, Any], channel: str) -> str:
    """ZeroMQ's address of `channel`; raises `ValueError` and the like for a wrong file."""
    ip, port, transport = str(info["ip"]), int(info[f"{channel}_port"]), info["transport"]
    if transport == "ipc":
        return f"ipc://{ip}-{port}"
    if transport != "tcp":
        raise ValueError(f"transport is {transport!r}, it must be 'tcp' or 'ipc'")
    if not info.get("curve_secretkey") or not info.get("curve_publickey"):
        raise ValueError("transport is 'tcp' without the keys curve_publickey and curve_secretkey")
    if not 0 < port < 65536:
        raise ValueError(f"{channel}_port is {port}")
    return f"tcp://[{ip}]:{port}" if ":" in ip else f"tcp://{ip}:{port}"


def bind(socket: zmq.Socket[bytes], where: str, what: str, bind_s: float) -> None:
    """Bind; a taken address is tried again for `bind_s` seconds, because after a kernel restart
    the relay before this one may still be closing it. Raises `RelayError`."""
    deadline = time.monotonic() + bind_s
    place = where.partition("://")[2]
    while True:
        try:
            socket.bind(where)
            return
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE:
                raise RelayError(
                    f"the {what} cannot listen at {place} ({error.strerror})", EXIT_USAGE
                ) from None
            if time.monotonic() >= deadline:
                raise RelayError(
                    f"the {what}'s address {place} is taken by another process: "
                    "the kernel was not connected, start it again to get other ports",
                    EXIT_BUSY,
                ) from None
        time.sleep(0.05)


class Clients:
    """The sockets that Jupyter's clients talk to. Made once per relay process."""

    def __init__(self, context: zmq.Context[Any], info: Mapping[str, Any], bind_s: float) -> None:
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        self.subscriptions: dict[bytes, int] = {}
        self.expected = 0
        """Subscriptions of the relay before this one; see `SUBSCRIBE_S`."""
        self._patient = False
        self._waiting: dict[str, deque[list[bytes]]] = {
            lane: deque(maxlen=UNSENT_ANSWERS) for lane in ROUTED
        }
        try:
            for channel in CHANNELS:
                self.sockets[channel] = self._open(context, info, channel, bind_s)
        except RelayError:
            self.close(0)
            raise
        self._started = time.monotonic()

    def _open(
        self, context: zmq.Context[Any], info: Mapping[str, Any], channel: str, bind_s: float
    ) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = context.socket(zmq.XPUB if channel == "iopub" else zmq.ROUTER)
        socket.linger = 0
        socket.maxmsgsize = MAX_PART_BYTES
        if info["transport"] == "tcp":
            socket.ipv6 = ":" in str(info["ip"])
            socket.curve_server = True
            socket.curve_secretkey = str(info["curve_secretkey"]).encode()
        if channel == "iopub":
            socket.sndhwm = UNSENT_OUTPUTS
            socket.setsockopt(zmq.XPUB_VERBOSER, 1)
        else:
            socket.rcvhwm = UNREAD_REQUESTS
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client that connects anew, same name
        if channel in ROUTED:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            bind(socket, endpoint(info, channel), f"{channel} channel", bind_s)
        except RelayError:
            socket.close()
            raise
        return socket

    # -- from the clients -------------------------------------------------------------------------

    def requests(self, channel: str, limit: int) -> Iterator[list[bytes]]:
        """What clients sent on `channel`, at most `limit` messages."""
        for _ in range(limit):
            try:
                yield self.sockets[channel].recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

    def beat(self) -> None:
        """Answer heartbeats."""
        for message in self.requests("hb", 100):
            try:
                self.sockets["hb"].send_multipart(message, zmq.NOBLOCK)
            except zmq.ZMQError:
                pass  # it has left

    def subscribers(self) -> list[bytes]:
        """Topics that somebody subscribed to just now and nobody was subscribed to before, but for
        `LEAVE`."""
        first = []
        for message in self.requests("iopub", 1000):
            topic = message[0][1:]
            count = self.subscriptions.get(topic, 0)
            if message[0][:1] == b"\1":
                if count == 0 and topic != LEAVE:
                    first.append(topic)
                self.subscriptions[topic] = count + 1
            elif count > 1:
                self.subscriptions[topic] = count - 1
            else:
                self.subscriptions.pop(topic, None)
        return first

    # -- to the clients ---------------------------------------------------------------------------

    @property
    def present(self) -> int:
        """Subscriptions of clients that are here to stay."""
        left = self.subscriptions.get(LEAVE, 0)
        return max(0, sum(self.subscriptions.values()) - 2 * left)

    @property
    def leaving(self) -> bool:
        """All that are still connected are about to go."""
        return LEAVE in self.subscriptions and not self.present

    @property
    def listening(self) -> bool:
        """False while clients are expected to subscribe again after a start of the relay."""
        there = self.present >= self.expected
        return there or time.monotonic() - self._started > SUBSCRIBE_S

    def wait(self, channel: str, parts: Sequence[bytes]) -> None:
        """An answer that the relay before this one could not give to its client."""
        self._waiting[channel].append(list(parts))

    def send(self, channel: str, parts: Sequence[bytes]) -> bool:
        """Send an output to its client, or to all subscribers. An answer whose client is gone is
        dropped, as a kernel does, but waits for it right after a start of the relay, and while
        there is no client or it is leaving. False: it waits."""
        if channel == "iopub":
            self.sockets[channel].send_multipart(parts, zmq.NOBLOCK)
            return True
        waiting = self._waiting[channel]
        behind = any(other[0] == parts[0] for other in waiting)
        waits = behind or (self._patient and self.leaving)
        if (waits or not self._route(channel, parts)) and self._returning:
            waiting.append(list(parts))
            return False
        return True

    def _route(self, channel: str, parts: Sequence[bytes]) -> bool:
        try:
            self.sockets[channel].send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return True  # it does not read its answers: dropped
        except zmq.ZMQError as error:
            return error.errno != errno.EHOSTUNREACH
        return True

    @property
    def patient(self) -> bool:
        """There is no client, and answers wait until there is one and a moment longer."""
        return self._patient

    @patient.setter
    def patient(self, patient: bool) -> None:
        if self._patient and not patient:
            self._started = time.monotonic()
        self._patient = patient

    @property
    def _returning(self) -> bool:
        return self._patient or time.monotonic() - self._started < RETURN_S

    @property
    def owed(self) -> bool:
        """Answers wait for clients that may be about to connect again."""
        quiet = self._patient and not self.present
        return not quiet and any(self._waiting.values())

    def pay(self) -> None:
        """Try the answers that wait again; called a few times a second."""
        for channel, waiting in self._waiting.items():
            kept: deque[list[bytes]] = deque(maxlen=UNSENT_ANSWERS)
            absent: set[bytes] = set()
            for parts in waiting:
                if parts[0] in absent or not self._route(channel, parts):
                    absent.add(parts[0])
                    kept.append(parts)
            if not self._returning:
                kept.clear()
            self._waiting[channel] = kept

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Give the ports back; what was sent has `linger_ms` to reach the clients."""
        for socket in self.sockets.values():
            socket.close(linger=linger_ms)
