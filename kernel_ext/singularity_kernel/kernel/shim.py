"""The shim: parent of a kernel inside its capsule, and the kernel's end of the tunnel.

    python -m singularity_kernel.kernel.shim --kernel KERNEL.json --tunnel TUNNEL.json -- COMMAND

The node agent starts it in the kernel's place. It starts COMMAND in a process group of its own,
passes signals on to it, and ends as it ends: with the same exit status or by the same signal.
Meanwhile it is a client of the kernel over the ipc sockets of KERNEL.json and carries the
messages to and from the relay (`tunnel`).

It is dumped and restored together with the kernel, at any instruction and without being asked: the
ipc sockets with both their ends, the numbers and what waits are in the image, and the connection to
the relay is simply gone afterwards. While it is disconnected it looks at TUNNEL.json again and
again; after a move only that file has to be written anew.

One thread, ZeroMQ and the standard library. It runs with the node agent's Python, so the kernel's
environment needs nothing of ours.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

from singularity_kernel.relay.tunnel import (
    MAX_PART_BYTES,
    Dialer,
    Frame,
    Kind,
    TunnelError,
    refusal,
)

ROUTED = ("shell", "control", "stdin")

IDENTITY = b"singularity"
"""Of the shim's sockets at the kernel: the first part of every routing prefix there. The same on
shell and stdin, because a kernel asks for input where the request came from."""

LOOK_S = 0.05
"""Between two looks at TUNNEL.json, and two tries to connect."""

REFUSED_S = 0.5
"""After the relay refused: a new answer needs a new file, or a relay that was told."""

GREETING_S = 5.0
"""How long an answer to the greeting may take."""

OPEN_S = 0.3
"""How long requests wait for the first sign on iopub after it was connected. Before the kernel has
seen the subscription its output would go nowhere."""

UNREAD_OUTPUTS = 64
"""Outputs that ZeroMQ reads ahead of the shim; further ones stay in the kernel."""

IPC_RETRY_MS = 20
BEAT_MS = 5_000
SILENT_MS = 20_000

DRAIN_S = 2.0
"""After the kernel's end: how long its last words may take to the relay."""

AWAY_DRAIN_S = 0.2
"""The same while there is no connection."""

LAST_WORDS_S = 0.05
"""How long the kernel's sockets must be silent to count as empty."""

MESSAGES = 256
"""How much one turn of the loop reads from one socket."""

_PR_SET_PDEATHSIG = 1

_NOT_FORWARDED = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP),
    signal.SIGSYS,
}

_STOPPING = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGTERM}
"""After one of these a SIGCONT is meant for the kernel."""

_GONE = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class Kernel:
    """The kernel's process."""

    def __init__(self, argv: Sequence[str]) -> None:
        libc = ctypes.CDLL(None)
        parent = os.getpid()

        def prepare() -> None:
            # A shim that is killed takes the kernel along: nobody could speak to it any more.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)

        self._child = subprocess.Popen(list(argv), process_group=0, preexec_fn=prepare)  # noqa: PLW1509 (there is one thread)
        self.pid = self._child.pid

    def signal(self, signum: int) -> None:
        """Send a signal to its process group."""
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            pass

    def ended(self) -> bool:
        """True once its process has ended."""
        return self._child.poll() is not None

    def reap_others(self) -> None:
        """Reap what lost its parent and has ended: in a capsule it becomes a child of the main
        process, which is the shim."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid == self.pid:
                return
            os.waitpid(found.si_pid, 0)

    def exit_like_it(self) -> int:
        """The exit code to end with; does not return when a signal ended the kernel."""
        code = self._child.returncode
        if code >= 0:
            return int(code)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        return 128 - code  # a signal that does not end a process cannot have ended the kernel


def _monitor(socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """A socket that tells those events of `socket`; pyzmq's own way would load asyncio."""
    address = f"inproc://events-{id(socket):x}-{os.urandom(4).hex()}"
    socket.monitor(address, events)
    monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
    monitor.linger = 0
    monitor.connect(address)
    return monitor


class Connection:
    """The present connection to the relay, made anew after every break."""

    def __init__(self, context: zmq.Context[Any], path: str) -> None:
        self._context, self._path = context, path
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: zmq.Socket[bytes] | None = None
        self.file: dict[str, Any] = {}
        self.again_at = 0.0
        self._seen: tuple[int, ...] = ()

    def _stamp(self) -> tuple[int, ...]:
        try:
            info = os.stat(self._path)
        except OSError:
            return ()
        return (info.st_ino, info.st_mtime_ns, info.st_size)

    def file_changed(self) -> bool:
        """The tunnel file is another one than the connection was made with."""
        return self._stamp() != self._seen

    def dial(self) -> bool:
        """Begin a connection to where the tunnel file points; False while there is none."""
        self.close()
        self._seen = self._stamp()
        try:
            with open(self._path, encoding="utf-8") as file:
                found = json.load(file)
            address = str(found["address"])
            keys = [str(found[name]).encode() for name in ("public", "secret", "server")]
            int(found["incarnation"]), str(found["session"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        self.file = found
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.set_hwm(0)  # bounded by the windows of the tunnel
        socket.setsockopt(zmq.RECONNECT_IVL, round(LOOK_S * 1000))
        socket.setsockopt(zmq.HEARTBEAT_IVL, BEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENT_MS)
        socket.ipv6 = "[" in address
        socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = keys
        self.monitor = _monitor(socket, _GONE)
        self.socket = socket
        try:
            socket.connect(address)
        except zmq.ZMQError:
            self.close()
            return False
        return True

    def lost(self) -> bool:
        """The connection broke, or the relay does not know its key."""
        gone = False
        while self.monitor is not None:
            try:
                self.monitor.recv_multipart(zmq.NOBLOCK)
                gone = True
            except zmq.Again:
                break
        return gone

    def send(self, frame: Frame) -> None:
        """Hand a frame to ZeroMQ."""
        if self.socket is not None:
            self.socket.send_multipart(frame.encode(), zmq.NOBLOCK)

    def close(self) -> None:
        """Break it."""
        if self.socket is not None:
            self.socket.disable_monitor()
            self.socket.close(linger=0)
        if self.monitor is not None:
            self.monitor.close(linger=0)
        self.socket = self.monitor = None


class Shim:
    """The loop between kernel and relay."""

    def __init__(self, kernel: Kernel, wake: int, info: dict[str, Any], tunnel_file: str) -> None:
        self._kernel, self._wake = kernel, wake
        self._context: zmq.Context[Any] = zmq.Context()
        self._kernel_end = {name: self._connect(info, name) for name in (*ROUTED, "iopub")}
        self._iopub_monitor = _monitor(self._kernel_end["iopub"], zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._gate_at: float | None = None
        self._gate_open = False
        self._requests: dict[str, deque[tuple[int, tuple[bytes, ...]]]] = {
            name: deque() for name in ROUTED
        }
        self._line = Connection(self._context, tunnel_file)
        self._dialer = Dialer("", 0)
        self._greeted_at = 0.0
        self._said = ""
        self._continue = False

    def _connect(self, info: dict[str, Any], channel: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(
            zmq.SUB if channel == "iopub" else zmq.DEALER
        )
        socket.linger = 0
        socket.setsockopt(zmq.RECONNECT_IVL, IPC_RETRY_MS)
        if channel == "iopub":
            socket.rcvhwm = UNREAD_OUTPUTS
            socket.subscribe(b"")
        else:
            socket.identity = IDENTITY
        socket.connect(f"ipc://{info['ip']}-{info[channel + '_port']}")
        return socket

    def run(self) -> None:
        """Carry messages until the kernel has ended and its last words were passed on."""
        while not self._kernel.ended():
            self._turn(self._timeout())
        silent_at = time.monotonic() + LAST_WORDS_S
        give_up_at = time.monotonic() + DRAIN_S
        away_at = time.monotonic() + AWAY_DRAIN_S
        while (now := time.monotonic()) < give_up_at:
            if self._turn(10):
                silent_at = time.monotonic() + LAST_WORDS_S
            owed = any(len(box) for box in self._dialer.out.values())
            if now >= silent_at and not (owed and (self._dialer.open or now < away_at)):
                return

    def close(self) -> None:
        """Give every socket back."""
        self._line.close()
        self._kernel_end["iopub"].disable_monitor()
        for socket in self._kernel_end.values():
            socket.close()
        self._iopub_monitor.close()
        self._context.term()

    # -- the loop ---------------------------------------------------------------------------------

    def _timeout(self) -> int | None:
        if not self._dialer.open:
            return round(LOOK_S * 1000)
        if self._gate_at is not None and not self._gate_open:
            return max(1, round((self._gate_at - time.monotonic()) * 1000))
        return None

    def _turn(self, timeout: int | None) -> set[str]:
        """Wait, then carry what came; the channels on which the kernel had said something."""
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        for source in (self._line.socket, self._line.monitor):
            if source is not None:
                poller.register(source, zmq.POLLIN)
        if not self._gate_open:
            poller.register(self._iopub_monitor, zmq.POLLIN)
        for name, socket in self._kernel_end.items():
            events = zmq.POLLIN if self._dialer.out[name].room else 0
            if self._gate_open and self._requests.get(name):
                events |= zmq.POLLOUT
            if events:
                poller.register(socket, events)
        ready = dict(poller.poll(timeout))
        if self._wake in ready:
            self._signals()
        if self._line.monitor in ready and self._line.lost():
            self._break()
        if self._line.socket in ready:
            self._from_relay()
        spoke = self._from_kernel()
        self._open_gate(spoke)
        self._to_kernel()
        self._dial()
        for frame in self._dialer.take():
            self._line.send(frame)
        return spoke

    def _signals(self) -> None:
        try:
            numbers = os.read(self._wake, 256)
        except BlockingIOError:
            return
        if signal.SIGCHLD in numbers:
            self._kernel.reap_others()
        for signum in numbers.replace(bytes([signal.SIGCHLD]), b""):
            # SIGCONT comes with every thaw of the capsule too, and then it is not for the kernel:
            # what its user had stopped must stay so.
            if signum != signal.SIGCONT or self._continue:
                self._kernel.signal(signum)
            if signum in _STOPPING:
                self._continue = True

    # -- the kernel -------------------------------------------------------------------------------

    def _from_kernel(self) -> set[str]:
        spoke = set()
        for name, socket in self._kernel_end.items():
            box = self._dialer.out[name]
            for _ in range(MESSAGES):
                if not box.room:
                    break  # the kernel's own queue fills up next
                try:
                    parts = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                spoke.add(name)
                if (longest := max(map(len, parts))) <= MAX_PART_BYTES:
                    box.add(parts)
                else:
                    self._say(
                        f"a message of the kernel ({name}) was left out: {longest >> 20} MiB of it "
                        f"are in one piece, and at most {MAX_PART_BYTES >> 20} can be sent"
                    )
        return spoke

    def _open_gate(self, spoke: set[str]) -> None:
        if self._gate_open:
            return
        try:
            self._iopub_monitor.recv_multipart(zmq.NOBLOCK)
            self._gate_at = time.monotonic() + OPEN_S
        except zmq.Again:
            pass
        waited = self._gate_at is not None and time.monotonic() >= self._gate_at
        # Whatever it says on iopub, the subscription has reached it.
        self._gate_open = waited or "iopub" in spoke

    def _to_kernel(self) -> None:
        if not self._gate_open:
            return
        for name, waiting in self._requests.items():
            while waiting:
                number, parts = waiting[0]
                if parts:
                    try:
                        self._kernel_end[name].send_multipart(parts, zmq.NOBLOCK)
                    except zmq.Again:
                        break
                # From here on the message is in the kernel's socket, and dumped with it.
                waiting.popleft()
                self._dialer.into[name].done(number)

    # -- the relay --------------------------------------------------------------------------------

    def _break(self) -> None:
        self._line.close()
        self._dialer.closed()
        for waiting in self._requests.values():
            waiting.clear()  # not acknowledged: the relay sends them again

    def _dial(self) -> None:
        """Keep a connection, or a try to get one."""
        now = time.monotonic()
        if self._dialer.open or now < self._line.again_at:
            return
        trying = self._line.socket is not None and now - self._greeted_at < GREETING_S
        if trying and not self._line.file_changed():
            return
        self._break()
        self._line.again_at = now + LOOK_S
        if not self._line.dial():
            return
        self._greeted_at = now
        file = self._line.file
        if self._dialer.incarnation == 0:
            self._begin(file)
        self._dialer.session = str(file["session"])
        self._line.send(self._dialer.hello(int(file["incarnation"])))

    def _begin(self, file: dict[str, Any]) -> None:
        """A kernel that was just started: it has no past, or begins where another one ended."""
        self._dialer.incarnation = int(file["incarnation"])
        start = file.get("start")
        if start:
            self._dialer.start_at(start["requests"], start["outputs"])

    def _from_relay(self) -> None:
        while self._line.socket is not None:
            try:
                parts = self._line.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._frame(Frame.decode(parts))
            except TunnelError as error:
                self._say(f"the connection to the relay was closed: {error}")
                self._break()
                self._line.again_at = time.monotonic() + REFUSED_S
                return

    def _frame(self, frame: Frame) -> None:
        if frame.kind is Kind.REFUSE:
            raise TunnelError(refusal(frame))
        if not self._dialer.open:
            self._dialer.welcome(frame)
            self._said = ""
            return
        data = self._dialer.receive(frame)
        if data is not None:
            self._requests[data.lane].append((data.number, data.parts))

    def _say(self, what: str) -> None:
        """Into the session's log, once per trouble."""
        if what != self._said:
            self._said = what
            print(f"shim: {what}", file=sys.stderr, flush=True)


def catch_signals() -> int:
    """Notice every signal that can be passed on; returns the descriptor that tells them. Before
    the kernel is started, in the main thread."""
    reads, writes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    for signum in {signal.SIGCHLD, *(signal.valid_signals() - _NOT_FORWARDED)}:
        try:
            signal.signal(signum, lambda *_: None)
        except (OSError, ValueError):
            pass  # one that the C library keeps for itself
    return reads


def main(argv: list[str] | None = None) -> int:
    """Run one kernel; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    ours = words[: words.index("--")] if "--" in words else words
    command = words[len(ours) + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m singularity_kernel.kernel.shim",
        usage="%(prog)s --kernel FILE --tunnel FILE -- COMMAND ...",
        description="Start a kernel and carry its messages to and from its relay.",
    )
    parser.add_argument("--kernel", required=True, help="connection file of the kernel (ipc)")
    parser.add_argument("--tunnel", required=True, help="file that says where the relay is")
    options = parser.parse_args(ours)
    if not command:
        parser.error("the command that starts the kernel is missing: -- COMMAND ...")
    try:
        with open(options.kernel, encoding="utf-8") as file:
            info = json.load(file)
        wake = catch_signals()
        kernel = Kernel(command)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"shim: the kernel cannot be started ({error})", file=sys.stderr)
        return 127
    shim = Shim(kernel, wake, info, options.tunnel)
    shim.run()
    shim.close()
    return kernel.exit_like_it()


if __name__ == "__main__":
    sys.exit(main())
