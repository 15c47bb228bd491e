"""The relay of a session: its files, its process, and the agent's line to it.

Clients connect to the relay where client.json says (see `client_places`). The capsule runs the
shim, which starts the kernel, talks to it over unix sockets in the session's folder (kernel.json,
the same key, so that messages pass unchanged) and dials out to the relay (tunnel.json). The relay
keeps its state in a folder of its own: a session may leave this node, its relay stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from typing import Any

from singularity_proxy.capsule.launcher import (
    Capsule,
    CapsuleSpec,
    helper_environment,
    last_words,
    spawn,
)
from singularity_proxy.capsule.process import ProcessIdentity, ProcessWatch
from singularity_proxy.errors import Conflict, SingularityError, Unavailable
from singularity_proxy.wire import rpc
from singularity_proxy.wire.limits import RELAY

from singularity_scheduler.agent.folders import own_folder
from singularity_scheduler.agent.node import Settings
from singularity_scheduler.agent.sessions.launch import PORTS
from singularity_scheduler.agent.sessions.record import SessionRecord

from .client_places import CURVE

READY_LIMIT_S = 30.0
EXIT_PORT_TAKEN = 3
CALL_LIMIT_S = 20.0
USER_FILE_CHARACTERS = 65_536

_START_SHIM = (
    "import sys; sys.path += dict.fromkeys((sys.argv.pop(1), sys.argv.pop(1))); "
    "from singularity_kernel.kernel.shim import main; sys.exit(main())"
)


def kernel_connection(client: dict[str, Any], folder: str) -> dict[str, Any]:
    """The connection of the kernel behind the relay that listens at `client`: same key and
    scheme, unix sockets `<folder>/k-1` to `k-5`. Encryption ends at the relay's ports: the tunnel
    has its own, and the unix sockets are in the session's private folder."""
    ports = {name: place for place, name in enumerate(PORTS, start=1)}
    kept = {name: value for name, value in client.items() if name not in CURVE}
    return {**kept, "transport": "ipc", "ip": os.path.join(folder, "k"), **ports}


def shim_command(settings: Settings, folder: str, argv: Sequence[str]) -> list[str]:
    """The command of the capsule: the shim, which starts `argv` as its kernel. With the agent's
    Python, which has what it needs; isolated from the session's environment (-I), and without
    the start files of an environment (-S), which would load our own hooks into it."""
    return [
        *(settings.python, "-I", "-S", "-c", _START_SHIM),
        *(_root_of("singularity_kernel"), _root_of("zmq")),
        *("--kernel", os.path.join(folder, "kernel.json")),
        *("--tunnel", os.path.join(folder, "tunnel.json")),
        *("--", *argv),
    ]


def _root_of(package: str) -> str:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise Unavailable(
            f"this node has no package {package}; nothing was started: install "
            "jupyter-singularity with its extra 'kernel' here"
        )
    return os.path.dirname(os.path.dirname(os.path.abspath(found.origin)))


def write_private(path: str, content: dict[str, Any], owner: tuple[int, int]) -> None:
    """Write a JSON file that only `owner` may read, in a folder of that user's: whatever was put
    in its place is removed, never followed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        if os.geteuid() == 0:
            os.fchown(fd, *owner)
        json.dump(content, file)


class Relay:
    """A relay process and the line to it. Made by `start_relay`, or by `adopt` after a restart of
    the agent; the calls raise `Unavailable` while it is being replaced."""

    def __init__(
        self,
        settings: Settings,
        record: SessionRecord,
        identity: ProcessIdentity,
        on_exit: Callable[[ProcessWatch], None],
        on_event: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.capsule = Capsule(identity, on_exit)
        self._folder = settings.relay_dir(record.session)
        self._on_event = on_event
        self._peer: rpc.Peer | None = None

    @property
    def identity(self) -> ProcessIdentity:
        return self.capsule.identity

    async def call(self, method: str, **params: Any) -> Any:
        """Ask the relay; see `singularity_kernel.relay.app` for what it answers."""
        if self._peer is None or self._peer.closed.is_set():
            self._peer = await rpc.connect(
                os.path.join(self._folder, "control.sock"),
                {name: self._handler(name) for name in ("wanted", "joined")},
                limits=RELAY,
            )
        return await self._peer.call(method, CALL_LIMIT_S, **params)

    def _handler(self, name: str) -> rpc.Handler:
        async def handle(_: rpc.Peer, params: dict[str, Any]) -> None:
            self._on_event(name, params)

        return handle

    async def standing(self) -> dict[str, Any]:
        """`connected`, `joined` (a capsule has joined the present incarnation), `waiting` (requests
        that the capsule does not have), `positions`, and what the begin of the present
        `incarnation` changed: `requests_again`, `outputs_rolled_back`, `requests_lost`."""
        return _object(await self.call("standing"))

    async def status(self) -> dict[str, Any]:
        """`standing` and `tunnel`."""
        found = _object(await self.call("status"))
        _checked_tunnel(found)
        return found

    async def tunnel(self) -> dict[str, Any]:
        """What a shim needs to reach it: the content of the tunnel file (`write_tunnel`, on the
        node of the capsule). Holds keys."""
        return _checked_tunnel(await self.status())

    async def positions(self) -> dict[str, Any]:
        """Where the connection stands, for a checkpoint's manifest: asked for while the capsule is
        frozen. From here on the relay keeps what a rollback to it needs, until `forget`."""
        return _object(await self.call("positions", keep=True))

    async def forget(self, kept: list[dict[str, Any]]) -> None:
        """Keep only what rollbacks to the checkpoints with these positions need."""
        await self.call("forget", kept=kept)

    async def set_away(self, away: bool) -> None:
        """While the session is away the relay answers for it, and says when it is wanted."""
        await self.call("away", away=away)

    async def begin(
        self, incarnation: int, *, fresh: bool = False, undo: bool = False
    ) -> dict[str, Any]:
        """Begin an incarnation before an older image is restored (`fresh`: before a kernel is
        started anew; `undo`: requests that a kernel has had are not queued again): returns the new
        `status`, whose `tunnel` the capsule needs. Whoever was connected is shut out. What it
        changed is exact once a capsule has `joined`. A fork has a relay of its own and begins with
        one more than its image's incarnation. Idempotent until a capsule has joined; raises
        `Conflict` for a number that is not new."""
        return _object(
            await self.call("begin_incarnation", number=incarnation, fresh=fresh, undo=undo)
        )

    async def rolled_back(self, incarnation: int) -> list[dict[str, Any]]:
        """The newest outputs that the begin of `incarnation` rolled back, oldest first: `at` (unix
        time), `channel`, `type`, `request` (its message id). For the loss report."""
        found: list[dict[str, Any]] = await self.call("rolled_back", incarnation=incarnation)
        return found

    async def hang_up(self) -> None:
        """Close the line; the relay goes on."""
        if self._peer is not None:
            await self._peer.close()
            self._peer = None

    async def end(self, grace_s: float) -> None:
        """End the process; its state stays."""
        await self.hang_up()
        await self.capsule.end(grace_s)


def _object(answer: Any) -> dict[str, Any]:
    """An answer that must be an object; the relay is a process of the session's user, so it may be
    anything. Raises `Unavailable`."""
    if not isinstance(answer, dict):
        raise Unavailable("the relay of the kernel does not answer as one does; nothing was done")
    return answer


def _checked_tunnel(status: dict[str, Any]) -> dict[str, Any]:
    """The tunnel in a relay's status, with the types that it has. Raises `Unavailable`."""
    found = _object(status.get("tunnel"))
    number = found.get("incarnation")
    texts = all(isinstance(found.get(name), str) for name in ("address", "server"))
    if not texts or not isinstance(number, int) or isinstance(number, bool):
        return _object(None)
    return found


def write_tunnel(settings: Settings, record: SessionRecord, tunnel: dict[str, Any]) -> None:
    """Tell the session's shim where its relay is: before the start of a kernel, and before a
    restored capsule is thawed. The relay may be on another node."""
    path = os.path.join(settings.session_dir(record.session), "tunnel.json")
    write_private(path, tunnel, (record.uid, record.gid))


def read_tunnel(settings: Settings, record: SessionRecord) -> dict[str, Any] | None:
    """What `write_tunnel` wrote; None when it is gone, or names another relay than the session's:
    the file is the user's."""
    found = read_user_file(os.path.join(settings.session_dir(record.session), "tunnel.json"))
    own = found is not None and found.get("address") == f"tcp://{record.tunnel}"
    return found if own and record.tunnel else None


def make_relay_folder(settings: Settings, record: SessionRecord, client: dict[str, Any]) -> None:
    """The relay's own folder with the clients' connection file."""
    folder = settings.relay_dir(record.session)
    own_folder(os.path.dirname(folder), 0o711)
    os.mkdir(folder, 0o700)
    if os.geteuid() == 0:
        os.chown(folder, record.uid, record.gid)
    write_private(os.path.join(folder, "client.json"), client, (record.uid, record.gid))


def kernel_key_file(settings: Settings, session: str) -> str:
    """Beside the clients' file: how the kernel signs; not there when it signs as they do."""
    return os.path.join(settings.relay_dir(session), "kernel.json")


def read_client_file(settings: Settings, session: str) -> dict[str, Any] | None:
    """Jupyter's connection information of the relay here, with its key; None when there is none."""
    return read_user_file(os.path.join(settings.relay_dir(session), "client.json"))


def has_client_file(settings: Settings, session: str) -> bool:
    """Whether the relay's folder is there; without it no relay can be started in it."""
    return os.path.lexists(os.path.join(settings.relay_dir(session), "client.json"))


def read_user_file(path: str) -> dict[str, Any] | None:
    """A JSON object from a folder that belongs to a user: a link or something else in the file's
    place, or a large file, is not read. None when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            found = json.loads(file.read(USER_FILE_CHARACTERS))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def remove_relay_folder(settings: Settings, session: str) -> None:
    """Forget the relay's state; after its process has ended."""
    shutil.rmtree(settings.relay_dir(session), ignore_errors=True)


async def start_relay(
    settings: Settings,
    record: SessionRecord,
    on_exit: Callable[[ProcessWatch], None],
    on_event: Callable[[str, dict[str, Any]], None],
    note: Callable[[ProcessIdentity], None],
    *,
    absent: bool = False,
) -> Relay:
    """Start the relay as the session's user and wait until its ports listen. `note` writes down the
    process at once: a relay that the next agent did not know would keep the ports for itself.
    `absent`: it has never heard of the session, which may be in the middle of something. Raises
    `Conflict` with the field `port` when another process has one of them, `SingularityError`
    otherwise."""
    folder = settings.relay_dir(record.session)
    log_path = os.path.join(folder, "relay.log")
    env = helper_environment(os.environ)
    ready_r, ready_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        identity = spawn(
            CapsuleSpec(
                argv=[
                    *(settings.python, "-m", "singularity_kernel.relay.app"),
                    *("--session", record.session),
                    *("--connection", os.path.join(folder, "client.json")),
                    *("--state", folder),
                    *_kernel_option(settings, record.session),
                    *("--held-bytes", str(settings.held_output_bytes)),
                    *(("--absent",) if absent else ()),
                    *("--tunnel-ip", settings.tunnel_ip),
                    *("--agent-uid", str(os.geteuid())),
                    *("--ready-fd", str(ready_w)),
                ],
                env=env,
                cwd="/",
                log_path=log_path,
                uid=record.uid,
                gid=record.gid,
                pass_fds=(ready_w,),
            )
        )
    except BaseException:
        os.close(ready_r)
        raise
    finally:
        os.close(ready_w)
    started = False

    def ended(watch: ProcessWatch) -> None:
        if started:
            on_exit(watch)

    relay = Relay(settings, record, identity, ended, on_event)
    try:
        note(identity)
        if await _is_ready(ready_r):
            await relay.status()
            started = True
    except Unavailable:
        pass  # it ended right after it was ready
    finally:
        os.close(ready_r)
        if not started:
            await relay.end(0.0)
    if started:
        return relay
    why = last_words(log_path, record.uid) or "it said nothing"
    if relay.capsule.watch.exit_code == EXIT_PORT_TAKEN:
        raise Conflict(
            f"the kernel's ports could not be opened ({why}); nothing was started", port=True
        )
    raise SingularityError(f"the relay of the kernel did not start ({why}); nothing was started")


def _kernel_option(settings: Settings, session: str) -> tuple[str, ...]:
    path = kernel_key_file(settings, session)
    return ("--kernel", path) if os.path.lexists(path) else ()


async def _is_ready(fd: int) -> bool:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(fd, readable.set)
    try:
        await asyncio.wait_for(readable.wait(), READY_LIMIT_S)
        return os.read(fd, 64) != b""
    except (asyncio.TimeoutError, TimeoutError):
        return False
    finally:
        loop.remove_reader(fd)
