"""A relay process with connection files of its own, and an ipykernel behind it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.blocking import BlockingKernelClient
from singularity_proxy.wire.rpc import SyncPeer
from zmq.utils import garbage

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on at this moment, all different."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def wait_until(what: Any, seconds: float = 60.0, why: str = "it did not happen") -> None:
    """Poll `what()` until it is true; the limit only bounds a failure."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"{why} within {seconds} s"
        time.sleep(0.01)


@dataclass
class Channels:
    """The two connection files of one kernel: for clients (`tcp`: with ports and keys, else with
    unix sockets), and for the kernel."""

    folder: Path
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    session: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    tcp: bool = False

    def __post_init__(self) -> None:
        numbers = free_ports(5) if self.tcp else range(5001, 5006)
        self.ports = dict(zip(CHANNELS, numbers, strict=True))
        common = {"key": self.key, "signature_scheme": "hmac-sha256", "kernel_name": ""}
        public, secret = zmq.curve_keypair()
        keys = {"curve_publickey": public.decode(), "curve_secretkey": secret.decode()}
        place = {"transport": "tcp", "ip": "127.0.0.1", **keys}
        if not self.tcp:
            place = {"transport": "ipc", "ip": str(self.folder / "c" / "k")}
        clients = place | {f"{name}_port": port for name, port in self.ports.items()}
        ipc = {"transport": "ipc", "ip": str(self.folder / "k")} | {
            f"{name}_port": number for number, name in enumerate(CHANNELS, start=1)
        }
        self.client.write_text(json.dumps(common | clients))
        self.kernel.write_text(json.dumps(common | ipc))

    @property
    def client(self) -> Path:
        return self.folder / "client.json"

    @property
    def control(self) -> Path:
        """The relay's control socket."""
        return self.folder / "relay" / "control.sock"

    @property
    def tunnel(self) -> Path:
        return self.folder / "tunnel.json"

    @property
    def kernel(self) -> Path:
        return self.folder / "kernel.json"

    def ipc(self, channel: str) -> str:
        """The kernel's socket for `channel`."""
        return f"{self.folder / 'k'}-{CHANNELS.index(channel) + 1}"

    def connect(self, channel: str) -> socket.socket:
        """A client's connection to `channel`."""
        if self.tcp:
            return socket.create_connection(("127.0.0.1", self.ports[channel]), timeout=20)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(str(self.folder / "c" / f"k-{self.ports[channel]}"))
        return connection


class RelayProcess:
    """`python -m singularity_kernel.relay.app`, ready (its ready descriptor has spoken)."""

    def __init__(self, channels: Channels, *options: str) -> None:
        self.channels = channels
        read, write = os.pipe()
        self.process = subprocess.Popen(
            relay_command(channels, "--ready-fd", str(write), *options),
            pass_fds=[write],
            stderr=subprocess.PIPE,
        )
        os.close(write)
        with os.fdopen(read, "rb") as ready:
            said = ready.read()
        assert said == b"ready\n", self.process.stderr and self.process.stderr.read()

    @property
    def pid(self) -> int:
        return self.process.pid

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory_kib(self) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.split("RssAnon:")[1].split()[0])

    def ask(self, method: str, **params: Any) -> Any:
        """Call the relay over its control socket."""
        with SyncPeer(self.channels.control) as peer:
            return peer.call(method, **params)

    def point_shim_here(self) -> None:
        """Write the tunnel file, as the node agent does."""
        replace(self.channels.tunnel, self.ask("status")["tunnel"])

    def kill(self) -> None:
        """SIGKILL it."""
        self.process.kill()
        self.process.communicate(timeout=20)

    def stop(self) -> str:
        """SIGTERM it; returns what it said on stderr. It must have ended by itself with 0."""
        self.process.terminate()
        _, said = self.process.communicate(timeout=20)
        assert self.process.returncode == 0
        return said.decode()


def relay_command(channels: Channels, *options: str) -> list[str]:
    state = channels.folder / "relay"
    state.mkdir(mode=0o700, exist_ok=True)
    files = ["--connection", str(channels.client), "--state", str(state)]
    files += ["--session", channels.session]
    return [sys.executable, "-m", "singularity_kernel.relay.app", *files, *options]


def cpu_ticks(pid: int) -> int:
    """User and system time of a process so far, in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def rests(pid: int) -> bool:
    """Whether a process takes next to no time during a second. What it has just begun may take
    longer, or cost more on a loaded machine: asked again and again, one that spins never does."""
    before = cpu_ticks(pid)
    time.sleep(1)
    return cpu_ticks(pid) - before <= 5


def children(pid: int) -> list[int]:
    """The pids of the children of a process's first thread."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    """A process that is neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def replace(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file in one step."""
    path.with_suffix(".new").write_text(json.dumps(content))
    path.with_suffix(".new").replace(path)


@contextlib.contextmanager
def relay(channels: Channels, *options: str) -> Iterator[RelayProcess]:
    """A running relay, stopped and checked at the end."""
    process = RelayProcess(channels, *options)
    try:
        process.point_shim_here()
        yield process
        assert process.stop() == ""
    finally:
        process.process.kill()
        process.process.wait()
        assert process.process.stderr is not None
        process.process.stderr.close()


def shim_command(channels: Channels, *command: str) -> list[str]:
    files = ["--kernel", str(channels.kernel), "--tunnel", str(channels.tunnel)]
    return [sys.executable, "-m", "singularity_kernel.kernel.shim", *files, "--", *command]


@contextlib.contextmanager
def shim(channels: Channels, *command: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shim that runs `command` as its kernel; both are killed at the end."""
    process = subprocess.Popen(
        shim_command(channels, *command),
        stdin=subprocess.DEVNULL,
        env={**os.environ, **env},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ipykernel(
    channels: Channels, *options: str, **env: str
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A real kernel below its shim."""
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", str(channels.kernel), *options]
    return shim(channels, *command, **env)


@contextlib.contextmanager
def raw_client(channels: Channels) -> Iterator[BlockingKernelClient]:
    """A real client of the client-facing ports that has not asked anything yet."""
    found = BlockingKernelClient()
    found.load_connection_file(str(channels.client))
    # On a busy machine a heartbeat that comes late would count as a dead kernel.
    found.start_channels(hb=False)
    try:
        yield found
    finally:
        found.stop_channels()
        found.context.destroy(linger=0)
        garbage.gc.stop()  # pyzmq's own thread and context, started by the first large message


@contextlib.contextmanager
def client(channels: Channels, timeout: float = 60) -> Iterator[BlockingKernelClient]:
    """A real client of the client-facing ports that has seen the kernel answer."""
    with raw_client(channels) as found:
        found.wait_for_ready(timeout=timeout)
        yield found


def iopub(found: BlockingKernelClient, kind: str) -> dict[str, Any]:
    """The next message of that type on iopub."""
    while True:
        message: dict[str, Any] = found.get_iopub_msg(timeout=30)
        if message["msg_type"] == kind:
            return message


def next_iopub(found: BlockingKernelClient) -> dict[str, Any] | None:
    """The next message on iopub; None for one that came before: the relay was killed before it
    noted that it had been sent."""
    try:
        message: dict[str, Any] = found.get_iopub_msg(timeout=60)
    except ValueError as error:
        if "Duplicate Signature" not in str(error):
            raise
        return None
    return message


COUNT = (
    "import sys, time\n"
    "for i in range({n}):\n"
    "    sys.stdout.write(str(i) + chr(10))\n"  # one message each
    "    sys.stdout.flush()\n"
    "    time.sleep({pause})"
)


def numbers(found: BlockingKernelClient, count: int) -> list[int]:
    """The numbers that `COUNT` prints, in the order they come, until the last one."""
    seen: list[int] = []
    while not seen or seen[-1] != count - 1:
        message = next_iopub(found)
        if message is not None and message["msg_type"] == "stream":
            seen += [int(word) for word in message["content"]["text"].split()]
    return seen


def run(found: BlockingKernelClient, code: str, **options: Any) -> tuple[dict[str, Any], str]:
    """Execute `code`; returns the reply's content and all stream text."""
    streams = []

    def output(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            streams.append(message["content"]["text"])

    reply = found.execute_interactive(code, output_hook=output, timeout=60, **options)
    return reply["content"], "".join(streams)


class Everything:
    """A comm, a subshell, input and an interrupt of one kernel, set up once."""

    def __init__(self, found: BlockingKernelClient) -> None:
        self._client = found
        run(
            found,
            "import time\n"
            "def opened(comm, message):\n"
            "    comm.on_msg(lambda m: comm.send({'twice': 2 * m['content']['data']['n']}))\n"
            "get_ipython().kernel.comm_manager.register_target('double', opened)",
        )
        self._comm = {"comm_id": uuid.uuid4().hex}
        opening = {**self._comm, "target_name": "double", "data": {}}
        found.shell_channel.send(found.session.msg("comm_open", opening))
        found.control_channel.send(found.session.msg("create_subshell_request", {}))
        self._subshell = found.get_control_msg(timeout=30)["content"]["subshell_id"]

    def works(self) -> None:
        """All of it works now."""
        found = self._client
        found.shell_channel.send(found.session.msg("comm_msg", {**self._comm, "data": {"n": 21}}))
        assert iopub(found, "comm_msg")["content"]["data"] == {"twice": 42}
        reply, text = run(
            found,
            "print('hello', input('name? '))",
            allow_stdin=True,
            stdin_hook=lambda _: found.input("Ada"),
        )
        assert (reply["status"], text) == ("ok", "hello Ada\n")
        while found.shell_channel.socket.poll(100) != 0:
            found.get_shell_msg(timeout=1)
        run(found, "go = False")
        busy = found.execute("while not go: time.sleep(0.01)")
        content = {"code": "go = True", "silent": False, "store_history": False}
        message = found.session.msg("execute_request", content)
        message["header"]["subshell_id"] = self._subshell
        found.shell_channel.send(message)
        replies = {found.get_shell_msg(timeout=30)["parent_header"]["msg_id"] for _ in range(2)}
        assert replies == {message["header"]["msg_id"], busy}
        found.execute("print('on', flush=True)\nfor _ in range(600): time.sleep(0.1)")
        while "on" not in iopub(found, "stream")["content"]["text"]:
            pass
        found.control_channel.send(found.session.msg("interrupt_request", {}))
        assert found.get_control_msg(timeout=30)["msg_type"] == "interrupt_reply"
        assert found.get_shell_msg(timeout=30)["content"]["ename"] == "KeyboardInterrupt"
