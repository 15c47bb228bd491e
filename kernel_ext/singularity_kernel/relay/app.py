"""The relay: the client-facing sockets of one kernel, kept by a small process of their own.

    python -m singularity_kernel.relay.app --session ID --connection CLIENT.json --state DIR
        [--tunnel-ip IP] [--ready-fd N]

The node agent of the Jupyter server's node starts one per session and stops it with SIGTERM. It
never moves: Jupyter's clients talk to it for as long as the session exists, the kernel may
be anywhere, frozen, or away. What clients send is on disk before it goes to the shim
(`tunnel`), what the kernel says is on disk before the shim is told that it arrived, so neither a
kill of the relay nor a move of the kernel loses, doubles or reorders a message between the two.

* Heartbeats are answered here. While the session is away, requests wait, `kernel_info_request` is
  answered from the last reply, and the agent hears of a request that wants the kernel back.
* Nobody but the session's user reaches it (`clients`).
* Too many waiting requests: that channel of the clients is not read any more (`tunnel.QUEUE_*`).
* DIR (0700, this relay's alone) holds the state (`relay_store`) and the agent's control socket.

Exit codes: 0 stopped by SIGTERM or SIGINT, 2 wrong arguments or files, 3 a client-facing address
is taken.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import sys
import time
from typing import Any

import zmq
from singularity_proxy.errors import Conflict, NoSpace

from . import jupyter_wire, tunnel
from .attend import Attendance
from .clients import EXIT_USAGE, ROUTED, Clients, RelayError, read_connection, read_json
from .control import Control, Handler
from .core import MARK_S, Core
from .incarnations import Positions
from .place import Place
from .port import DOMAIN, FILE_VERSION, Gate, Listener, answer, new_client_keys, new_keys
from .store import HELD_BYTES, Full, Store
from .tunnel import Frame, Kind, TunnelError
from .undone import Answers

EXIT_STOPPED = 0

DRAIN_S = 0.3
"""How long SIGTERM waits for what the kernel's side still sends."""

TICK_S = 0.2
"""Between two looks at what waits for time to pass; there is none when nothing does."""

FRAMES = 256
REQUESTS = 64
"""How much one turn of the loop takes in before it writes to disk and passes on."""

WAKING = frozenset(
    {
        "execute_request",
        "complete_request",
        "inspect_request",
        "comm_msg",
        "input_reply",
        "debug_request",
    }
)
"""Requests that bring a session back; the others come from pages that are merely open."""


def _writing(handler: Handler) -> Handler:
    """`handler`, with one sentence for a disk that takes nothing."""

    def guarded(params: dict[str, Any]) -> Any:
        try:
            return handler(params)
        except Full as error:
            raise NoSpace(
                f"the relay's state cannot be written ({error}); free disk space and try again"
            ) from None

    return guarded


class Relay:
    """One relay: sockets, state and loop."""

    def __init__(
        self,
        session: str,
        info: dict[str, Any],
        state: str,
        tunnel_ip: str,
        bind_s: float,
        agent_uid: int,
        kernel: dict[str, Any] | None = None,
        held_bytes: int = HELD_BYTES,
        absent: bool = False,
    ) -> None:
        self.session = session
        self._store = Store(os.path.join(state, "relay.db"), held_bytes)
        self._signer = jupyter_wire.Signer(info)
        answers = Answers(self._signer, self._kernel_header)
        self._core = Core(session, self._store, answers)
        self._kernel = jupyter_wire.Signer(kernel) if kernel else None
        """How the kernel signs, when it is not how its clients do: in a fork."""
        self._context: zmq.Context[Any] = zmq.Context()
        self._gate = Gate(self._context)
        keys = self._store.fact("keys")
        if keys is None:
            keys = new_keys()
            self._store.set_fact("keys", keys)
        self._place = Place(info, bind_s)
        self._clients = Clients(self._context, info, bind_s)
        port = int(self._store.fact("port", 0))
        self._listener = Listener(self._context, keys, tunnel_ip, port, bind_s)
        self._gate.allowed = {DOMAIN: {keys["public"]}}
        if info.get("curve_publickey"):
            self._gate.allowed[b""] = {str(info["curve_publickey"])}
        self._store.set_fact("port", self._listener.port)
        self._clients.expected = int(self._store.fact("subscriptions", 0))
        self._away = bool(self._store.fact("away", False))
        self._store.flush()
        # What the agent of a capsule's node may ask, wherever that is; the rest is for the own one.
        self._far: dict[str, Handler] = {
            "standing": lambda _: self._standing(),
            "positions": _writing(self._positions),
            "away": _writing(self._set_away),
            "forget": _writing(self._forget),
            "rolled_back": lambda p: self._store.rolled_back(int(p["incarnation"])),
        }
        own = {"status": lambda _: self._status(), "begin_incarnation": _writing(self._begin)}
        self._control = Control(
            os.path.join(state, "control.sock"),
            {0, os.geteuid(), agent_uid},
            {**self._far, **own},
        )
        self._attendance = Attendance(self._core, self._clients, self._signer, absent=absent)
        for lane, parts in self._store.held():
            if lane in ROUTED:
                self._clients.wait(lane, self._signed(parts))
        self._peer: bytes | None = None
        self._told_stuck = False
        self._waked = 0.0
        self._stop_at: float | None = None
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    # -- the loop ---------------------------------------------------------------------------------

    def stop_on_signals(self) -> None:
        """Make SIGTERM and SIGINT end `run`. Main thread only."""
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: None)

    def run(self) -> None:
        """Serve until a signal comes, then pass on what the kernel's side still sends."""
        while True:
            ready = self._wait()
            if self._wake_r in ready:
                self._begin_stop()
            if self._gate.socket in ready:
                self._gate.answer()
            self._clients.beat()
            for source in ready:
                if isinstance(source, int) and source != self._wake_r:
                    self._control.serve(source)
            if not self._core.stuck:
                self._take_in()
            self._pass_on()
            if self._stop_at is not None and time.monotonic() >= self._stop_at:
                return

    def _wait(self) -> set[Any]:
        poller = zmq.Poller()
        poller.register(self._wake_r, zmq.POLLIN)
        poller.register(self._gate.socket, zmq.POLLIN)
        poller.register(self._clients.sockets["hb"], zmq.POLLIN)
        if not self._core.stuck:
            poller.register(self._clients.sockets["iopub"], zmq.POLLIN)
            poller.register(self._listener.socket, zmq.POLLIN)
            for lane in ROUTED:
                if self._core.tunnel.out[lane].room:
                    poller.register(self._clients.sockets[lane], zmq.POLLIN)
        for fd, write in self._control.descriptors().items():
            poller.register(fd, zmq.POLLIN | (zmq.POLLOUT if write else 0))
        return {source for source, _ in poller.poll(self._timeout())}

    def _timeout(self) -> int | None:
        times, now = [], time.monotonic()
        if self._attendance.wait_s is not None and not self._core.stuck:
            times.append(self._attendance.wait_s)
        if self._core.owing:
            times.append(MARK_S)
        if self._stop_at is not None:
            times.append(self._stop_at - now)
        if self._core.stuck or self._clients.owed or self._core.outputs:
            times.append(TICK_S)
        return max(0, round(min(times) * 1000) + 1) if times else None

    def _take_in(self) -> None:
        """Read what came and note it; nothing of it counts before it is on disk."""
        for peer, parts in self._listener.frames(FRAMES):
            self._frame(peer, parts)
        for lane in ROUTED:
            if self._core.tunnel.out[lane].room and self._stop_at is None:
                for parts in self._clients.requests(lane, REQUESTS):
                    self._request(lane, parts)
        for topic in self._clients.subscribers():
            self._welcome(topic)
        self._attendance.look()
        if self._clients.listening:
            self._store.set_fact("subscriptions", self._clients.present)

    def _pass_on(self) -> None:
        """Write to disk; then acknowledge, and pass on what came."""
        if not self._core.commit():
            if not self._told_stuck:
                self._told_stuck = True
                print(
                    f"relay: its state cannot be written ({self._core.stuck}); the kernel's "
                    "messages wait, nothing is lost: free disk space",
                    file=sys.stderr,
                )
            return
        self._told_stuck = False
        self._attendance.give(lambda parts: self._publish("iopub", parts))
        if self._core.outputs and self._clients.listening:
            sent, held = [], self._core.held
            for output in self._core.take_outputs():
                kept = held and output.lane == "iopub"
                if kept or self._publish(output.lane, output.parts) or not held:
                    sent.append(output)
                else:
                    self._store.hold(output)
            self._core.sent(sent)
        if self._clients.owed:
            self._clients.pay()
        if self._peer is not None:
            for frame in self._core.tunnel.take():
                if not self._listener.send(self._peer, frame.encode(), self._left):
                    break

    def _publish(self, lane: str, parts: list[bytes]) -> bool:
        return self._clients.send(lane, self._signed(parts))

    def _signed(self, parts: list[bytes]) -> list[bytes]:
        return self._signer.signed(parts) if self._kernel else parts

    def _begin_stop(self) -> None:
        os.read(self._wake_r, 64)
        if self._stop_at is None:
            for signum in (signal.SIGTERM, signal.SIGINT):  # the end is near and has its own limit
                signal.signal(signum, signal.SIG_IGN)
            if self._peer is not None:  # a frame that changes nothing tells whether it is there
                lane = tunnel.LANES[0]
                number = self._core.tunnel.into[lane].received
                frame = Frame(Kind.ACK, self._core.tunnel.incarnation, lane, number)
                self._listener.send(self._peer, frame.encode(), self._left)
            self._stop_at = time.monotonic() + (DRAIN_S if self._peer is not None else 0.0)

    def close(self) -> None:
        """Give everything back; the clients are sent what is on its way to them."""
        self._core.close()
        self._control.close()
        self._clients.close()
        self._listener.socket.close(linger=0)
        self._gate.socket.close()
        self._context.term()
        self._place.leave()
        os.close(self._wake_r)
        os.close(self._wake_w)

    # -- requests ---------------------------------------------------------------------------------

    def _request(self, lane: str, parts: list[bytes]) -> None:
        if not self._signer.valid(parts):
            return
        head = jupyter_wire.header(parts)
        kind = str(head.get("msg_type", ""))
        if self._away:
            if kind == "kernel_info_request" and self._answer_info(lane, parts, head):
                return
            if kind in WAKING:
                self._wake(kind)
        self._core.request(lane, kind, self._kernel.signed(parts) if self._kernel else parts)

    def _wake(self, kind: str) -> None:
        now = time.monotonic()
        if now - self._waked >= 1.0:
            self._waked = now
            self._control.notify("wanted", request=kind)

    def _answer_info(self, lane: str, parts: list[bytes], head: dict[str, Any]) -> bool:
        """Say what the kernel is in its place, so that pages can be opened while it is away."""
        known = self._store.fact("kernel_info")
        if known is None:
            return False
        found = jupyter_wire.split(parts)
        prefix = found[0] if found else []
        like, content = known["header"], known["content"].encode()
        idle = {"execution_state": "idle"}
        for part in (
            ("iopub", self._signer.message([b"status"], "status", idle, head, like)),
            (lane, self._signer.message(prefix, "kernel_info_reply", content, head, like)),
        ):
            self._clients.send(*part)
        return True

    def _kernel_header(self) -> dict[str, Any]:
        known = self._store.fact("kernel_info")
        return dict(known["header"]) if known else {}

    def _welcome(self, topic: bytes) -> None:
        """What a kernel that knows JEP 65 says to a first subscriber; others say nothing."""
        like = self._store.fact("welcome")
        if like is not None:
            content = {"subscription": topic.decode("utf-8", "replace")}
            prefix = [topic] if topic else []
            message = self._signer.message(prefix, "iopub_welcome", content, {}, like)
            self._clients.send("iopub", message)

    # -- the tunnel -------------------------------------------------------------------------------

    def _frame(self, peer: bytes, parts: list[bytes]) -> None:
        try:
            frame = Frame.decode(parts)
            if frame.kind is Kind.HELLO:
                self._hello(peer, frame)
                return
            if frame.kind is Kind.ASK:
                told = answer(frame, self.session, self._store.history.now.number, self._far)
                self._listener.send(peer, told.encode(), lambda: None)
                return
            if peer != self._peer:
                raise TunnelError("this connection was not greeted, or replaced by another one")
            self._core.receive(frame)
        except TunnelError as error:
            if peer == self._peer:
                self._left()
            refusal = tunnel.refuse_frame(self._store.history.now.number, str(error))
            self._listener.send(peer, refusal.encode(), lambda: None)
            return

    def _hello(self, peer: bytes, frame: Frame) -> None:
        welcome, began = self._core.greet(tunnel.read_hello(frame))
        self._peer = None
        if self._listener.send(peer, welcome.encode(), lambda: None):
            self._peer = peer
            # It was dumped without a connection: who greets is back, on whatever node.
            self._set_away({"away": False})
        else:
            self._core.lost()
        if began is not None:
            self._control.notify("joined", **began)

    def _left(self) -> None:
        """The connection of the shim is gone; it makes another one."""
        self._peer = None
        self._core.lost()

    # -- the agent's questions --------------------------------------------------------------------

    def _standing(self) -> dict[str, Any]:
        """Where the present incarnation stands; nothing secret."""
        return {
            **self._core.begun(),
            "connected": self._peer is not None and self._core.tunnel.open,
            "joined": self._store.history.now.joined,
            "away": self._away,
            "waiting": sum(len(box) for box in self._core.tunnel.out.values()),
            "stuck": self._core.stuck,
            "subscribed": self._clients.present > 0,
            "held": self._store.held_count,
            "positions": self._store.positions().to_json(),
            "requests_kept_after": self._store.gone,
        }

    def _status(self) -> dict[str, Any]:
        """The same, and the tunnel file of a capsule that may join."""
        keys = self._store.fact("keys")
        now = self._store.history.now
        return {
            **self._standing(),
            "tunnel": {
                "version": FILE_VERSION,
                "session": self.session,
                "incarnation": now.number,
                "address": self._listener.address,
                "server": keys["server_public"],
                "public": keys["public"],
                "secret": keys["secret"],
                "start": self._store.fact("start"),
            },
        }

    def _positions(self, params: dict[str, Any]) -> dict[str, Any]:
        """Where the connection stands; with `keep`, what comes from here on is kept."""
        positions = self._store.positions()
        if params.get("keep") and self._store.floor is None:
            self._store.keep_from([positions])
        return positions.to_json()

    def _forget(self, params: dict[str, Any]) -> dict[str, Any]:
        """`kept`: the positions of every checkpoint that there is."""
        self._store.keep_from([Positions.from_json(one) for one in params["kept"]])
        return {}

    def _set_away(self, params: dict[str, Any]) -> dict[str, Any]:
        self._away = bool(params["away"])
        self._store.set_fact("away", self._away)
        self._store.flush()
        self._waked = 0.0
        if self._away:  # a request may have come between the freeze and this call
            for box in self._core.tunnel.out.values():
                for parts in box.kept():
                    kind = str(jupyter_wire.header(parts).get("msg_type", ""))
                    if kind in WAKING:
                        self._wake(kind)
                        return {}
        return {}

    def _begin(self, params: dict[str, Any]) -> dict[str, Any]:
        """Begin incarnation `number`; whoever is connected is shut out. See `Core.begin`."""
        old = self._store.fact("keys")
        new = {**old, **new_client_keys()}
        self._store.set_fact("keys", new)  # written together with the incarnation
        begun = False
        try:
            begun = self._core.begin(
                int(params["number"]), bool(params.get("fresh")), bool(params.get("undo"))
            )
        except ValueError as error:
            raise Conflict(f"{error}; nothing was changed") from None
        finally:
            if not begun:
                self._store.set_fact("keys", old)
        if begun:
            self._gate.allowed[DOMAIN] = {new["public"]}
            self._left()
        return self._status()


def main(argv: list[str] | None = None) -> int:
    """Run one relay; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m singularity_kernel.relay.app",
        description="Keep the client-facing channels of one kernel, wherever the kernel is.",
    )
    parser.add_argument("--session", required=True, help="id of the session")
    parser.add_argument("--connection", required=True, help="connection file of the clients")
    parser.add_argument("--kernel", help="file with the kernel's key, if it is another one")
    parser.add_argument("--state", required=True, help="folder of this relay's alone")
    parser.add_argument("--tunnel-ip", default="127.0.0.1", help="address for the kernel's side")
    parser.add_argument(
        "--held-bytes",
        type=int,
        default=HELD_BYTES,
        help="output kept while no client is connected (default 32 MiB)",
    )
    parser.add_argument("--absent", action="store_true", help="there were clients before it")
    parser.add_argument("--ready-fd", type=int, help="'ready' is written here once it listens")
    parser.add_argument("--agent-uid", type=int, default=0, help="who may use the control socket")
    parser.add_argument(
        "--bind-s", type=float, default=2.0, help="seconds to wait for a taken address (default 2)"
    )
    options = parser.parse_args(argv)
    relay: Relay | None = None
    try:
        relay = _make(options)
        relay.stop_on_signals()
        if options.ready_fd is not None:
            try:
                os.write(options.ready_fd, b"ready\n")
                os.close(options.ready_fd)
            except OSError as error:
                raise RelayError(
                    f"--ready-fd {options.ready_fd} cannot be written ({error.strerror})",
                    EXIT_USAGE,
                ) from None
        relay.run()
        return EXIT_STOPPED
    except RelayError as error:
        print(f"relay: {error}", file=sys.stderr)
        return error.code
    finally:
        if relay:
            relay.close()


def _make(options: argparse.Namespace) -> Relay:
    info = read_connection(options.connection)
    kernel = read_json(options.kernel) if options.kernel else None
    try:
        return Relay(
            options.session,
            info,
            options.state,
            options.tunnel_ip,
            options.bind_s,
            options.agent_uid,
            kernel,
            options.held_bytes,
            options.absent,
        )
    except (OSError, sqlite3.Error, Full) as error:
        raise RelayError(
            f"the state in {options.state} cannot be used ({error})", EXIT_USAGE
        ) from None
    except ValueError as error:
        raise RelayError(
            f"the connection file {options.connection} is not one of Jupyter's ({error})",
            EXIT_USAGE,
        ) from None


if __name__ == "__main__":
    sys.exit(main())
