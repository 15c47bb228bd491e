"""A scheduler for tests of the kernel side: the REST calls that the provisioner makes, over real
HTTP, with real kernels and relays behind them. It has no policy and no devices."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from singularity_proxy import HIDDEN_DEVICES
from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.errors import Conflict, Forbidden, NotFound, SingularityError, to_wire
from singularity_proxy.wire.rpc import SyncPeer
from singularity_scheduler.agent.relays.client_places import CURVE, place_clients
from singularity_scheduler.agent.relays.relay import kernel_connection
from support.kernel_relay import free_ports
from tornado import web
from tornado.iostream import StreamClosedError

TOKEN = "a-token-of-the-hub"


@dataclass
class Session:
    """One session: its JSON, what it was launched with, and its processes."""

    json: dict[str, Any]
    launch: dict[str, Any]
    folder: Path
    kernel_id: str | None = None
    kernel: subprocess.Popen[bytes] | None = None
    relay: subprocess.Popen[bytes] | None = None
    local: bool = True
    """Whether the Jupyter server is on the relay's machine."""
    signals: list[int] = field(default_factory=list)
    ends: list[dict[str, str]] = field(default_factory=list)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    """Verbs that it was asked for, with their bodies."""

    def start(self) -> None:
        connection = self.launch["connection"] = self._place(self.launch["connection"])
        kernel = self.folder / "kernel.json"
        kernel.write_text(json.dumps(kernel_connection(connection, str(self.folder))))
        tunnel = self._start_relay(self.folder)
        shim = [sys.executable, "-m", "singularity_kernel.kernel.shim"]
        shim += ["--kernel", str(kernel), "--tunnel", str(tunnel), "--"]
        argv = [word.replace("{connection_file}", str(kernel)) for word in self.launch["argv"]]
        self.kernel = subprocess.Popen(
            [*shim, *argv],
            env={**self.launch["env"], **self.variables()},
            cwd=self.launch["cwd"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _place(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Where an agent would let the relay listen for a server of this machine, or of another
        one."""
        settings = SimpleNamespace(
            clients_dir=lambda uid: str(self.folder.parent / "c" / str(uid)), client_ip=""
        )
        record = SimpleNamespace(uid=os.geteuid(), gid=os.getegid())
        owner = ProcessIdentity.of(os.getpid()) if self.local else None
        return place_clients(settings, record, asked, owner)  # type: ignore[arg-type]

    def _start_relay(self, state: Path, *options: str) -> Path:
        """Returns the tunnel file."""
        client = state / "client.json"
        client.write_text(json.dumps(self.launch["connection"]))
        read, write = os.pipe()
        command = [sys.executable, "-m", "singularity_kernel.relay.app", "--ready-fd", str(write)]
        command += ["--connection", str(client), "--state", str(state), "--bind-s", "0.2"]
        command += ["--session", self.json["id"], *options]
        self.relay = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.PIPE)
        os.close(write)
        with os.fdopen(read) as ready:
            if not ready.read():
                assert self.relay.stderr is not None
                with self.relay.stderr:
                    why = self.relay.stderr.read().decode().strip()
                code, self.relay = self.relay.wait(), None
                raise Conflict(why, port=True) if code == 3 else SingularityError(why)
        tunnel = self.folder / "tunnel.json"
        with SyncPeer(state / "control.sock") as peer:
            tunnel.write_text(json.dumps(peer.call("status")["tunnel"]))
        return tunnel

    def lose_relay(self) -> None:
        """Its node is gone: the kernel goes on behind another relay, at another place."""
        assert self.relay is not None
        assert self.relay.stderr is not None
        self.relay.kill()
        self.relay.communicate(timeout=20)
        before = self.launch["connection"]
        ports = [k for k in before if k.endswith("_port")]
        again = dict(zip(ports, free_ports(len(ports)), strict=True))
        plain = {k: v for k, v in before.items() if k not in CURVE}
        self.launch["connection"] = self._place(
            {**plain, "transport": "tcp", "ip": "127.0.0.1", **again}
        )
        state = self.folder / f"again-{self.json['epoch']}"
        state.mkdir(mode=0o700)
        self._start_relay(state, "--absent")
        self.json["epoch"] += 1

    def variables(self) -> dict[str, str]:
        return {
            "SINGULARITY_SOCKET": str(self.folder / "agent.sock"),
            "SINGULARITY_SESSION": self.json["id"],
            "CUDA_VISIBLE_DEVICES": HIDDEN_DEVICES,
        }

    def look(self) -> dict[str, Any]:
        """The session's JSON, with the end of its process noticed."""
        code = self.kernel.poll() if self.kernel else None
        if code is not None and self.json["process_state"] == "live":
            self.json["exit_code"] = code
            self.json["process_state"] = "completed" if code == 0 else "failed"
        return self.json

    def end(self) -> None:
        if self.kernel:
            if self.kernel.poll() is None:
                os.killpg(self.kernel.pid, signal.SIGKILL)
            self.kernel.wait()
            self.look()
        if self.relay:
            self.relay.terminate()
            self.relay.wait()
            assert self.relay.stderr is not None
            self.relay.stderr.close()
            self.relay = None


class Scheduler:
    """Serves the API on a thread of its own; `sessions` in the order of their creation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sessions: list[Session] = []
        self.refusal: SingularityError | None = None
        """Raised by the next session starts while it is set."""
        self.answers_lost = 0
        """So many of the next session starts are done and not answered, as when the service is
        killed behind a proxy."""
        self.local = True
        """Whether Jupyter servers are on the machine of their relays."""
        self.keys: dict[str, Session] = {}
        self.polls = 0
        self.events: list[tuple[str, Any]] = []
        """What the event stream sends; one without a name is a heartbeat."""
        self.log = bytearray()
        """What every session has printed."""
        self.log_over = False
        self.listeners = 0
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/services/singularity/"

    @property
    def environment(self) -> dict[str, str]:
        """What the spawner sets for a server of the platform."""
        return {"SINGULARITY_API_URL": self.url, "JUPYTERHUB_API_TOKEN": TOKEN}

    def start(self) -> None:
        """Listen; the same port as before after a `stop`."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        assert ready.wait(20)

    def stop(self) -> None:
        """Stop answering; the sessions go on."""
        if self._thread and self._loop and self._stop:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._thread = None

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        prefix = "/services/singularity/api/v1/sessions"
        routes = [
            (prefix, _Sessions, {"scheduler": self}),
            (prefix + "/([^/]+)", _Session, {"scheduler": self}),
            (prefix + "/([^/]+)/connection", _Connection, {"scheduler": self}),
            (prefix + "/([^/]+)/signal", _Signal, {"scheduler": self}),
            (prefix + "/([^/]+)/(why|history|checkpoints|devices)", _About, {"scheduler": self}),
            (prefix + "/([^/]+)/log", _Log, {"scheduler": self}),
            (prefix + "/([^/]+)/owner", _Owner, {"scheduler": self}),
            (
                prefix + r"/([^/]+)/(checkpoint|suspend|resume|migrate|park|restore|fork|reopen|"
                r"keep|tier|priority|resize)",
                _Verb,
                {"scheduler": self},
            ),
            (prefix.replace("sessions", "users/[^/]+/suspended"), _Found, {"scheduler": self}),
            (prefix.replace("sessions", "cluster"), _Cluster, {"scheduler": self}),
            (prefix.replace("sessions", r"users/([^/]+)/tiers"), _Tiers, {"scheduler": self}),
            (prefix.replace("sessions", "events"), _Events, {"scheduler": self}),
        ]
        server = web.Application(routes).listen(self.port, "127.0.0.1")
        self.port = next(iter(server._sockets.values())).getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.stop()
        await server.close_all_connections()

    def create(self, body: dict[str, Any], key: str) -> Session:
        if key in self.keys:
            return self.keys[key]
        if self.refusal:
            raise self.refusal
        sid = uuid.uuid4().hex[:12]
        folder = self.folder / sid
        folder.mkdir()
        answer = {k: body.get(k) for k in ("kind", "name", "tier", "devices")}
        created = datetime.now(timezone.utc).isoformat()
        answer |= {"id": sid, "epoch": 1, "created_at": created}
        answer |= {"process_state": "live", "device_state": "none", "exit_code": None}
        session = Session(answer, body["launch"], folder, body.get("kernel_id"), local=self.local)
        if body["launch"]["mode"] == "capsule":
            session.start()
        self.sessions.append(session)
        self.keys[key] = session
        return session

    def find(self, sid: str) -> Session:
        for session in self.sessions:
            if session.json["id"] == sid:
                return session
        raise NotFound(f"there is no session {sid}", session=sid)


class _Base(web.RequestHandler):
    def initialize(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def prepare(self) -> None:
        if self.request.headers.get("Authorization") != f"token {TOKEN}":
            raise Forbidden("that token is not known")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs["exc_info"][1]
        wire = to_wire(error)
        self.set_status(getattr(error, "http_status", 500))
        self.finish(
            json.dumps({"error": wire["type"], "detail": wire["message"], **wire["fields"]})
        )

    def log_exception(self, *_: Any) -> None:
        """The client tells."""


class _Sessions(_Base):
    def get(self) -> None:
        found = [session.look() for session in self.scheduler.sessions]
        state = self.get_query_argument("state", None)
        if state:
            found = [s for s in found if s["process_state"] == state or state == "active"]
        self.finish(json.dumps({"sessions": found}))

    def post(self) -> None:
        key = self.request.headers.get("Idempotency-Key") or uuid.uuid4().hex
        session = self.scheduler.create(json.loads(self.request.body), key)
        if self.scheduler.answers_lost:
            self.scheduler.answers_lost -= 1
            self.set_status(503)
            self.finish()
            return
        launch = {
            "pid": session.kernel.pid if session.kernel else session.launch["owner_pid"],
            "connection": session.launch["connection"],
            "env": {} if session.kernel else session.variables(),
        }
        self.set_status(201)
        self.finish(json.dumps({**session.look(), "launch": launch}))


class _Session(_Base):
    def get(self, sid: str) -> None:
        self.scheduler.polls += 1
        self.finish(json.dumps(self.scheduler.find(sid).look()))

    def delete(self, sid: str) -> None:
        session = self.scheduler.find(sid)
        session.ends.append({k: self.get_query_argument(k, "") for k in ("reason", "grace_s")})
        session.end()
        self.finish(json.dumps(session.look()))


class _Connection(_Base):
    def get(self, sid: str) -> None:
        self.finish(json.dumps({"connection": self.scheduler.find(sid).launch["connection"]}))


class _Signal(_Base):
    def post(self, sid: str) -> None:
        session = self.scheduler.find(sid)
        signum = json.loads(self.request.body)["signum"]
        session.signals.append(signum)
        if session.kernel is None or session.kernel.poll() is not None:
            raise Conflict("the session has ended")
        os.killpg(session.kernel.pid, signum)
        self.finish(json.dumps(session.look()))


class _About(_Base):
    def get(self, sid: str, what: str) -> None:
        self.scheduler.find(sid)
        limit = int(self.get_query_argument("limit", "0"))
        cursor = self.get_query_argument("cursor", None)
        answers = {
            "why": {"sentence": "because", "facts": {}},
            "history": {"history": [limit], "next": None if cursor else "older"},
            "checkpoints": {"checkpoints": [{"id": "c1"}]},
            "devices": {"session": sid, "devices": []},
        }
        self.finish(json.dumps(answers[what]))


class _Log(_Base):
    """What `Scheduler.log` has now; of who follows, what comes until it is closed."""

    async def get(self, sid: str) -> None:
        self.scheduler.find(sid)
        if self.scheduler.refusal:
            raise self.scheduler.refusal
        log = self.scheduler.log
        at = min(int(self.get_query_argument("offset")), len(log))
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Singularity-Log-Offset", str(at))
        while True:
            self.write(bytes(log[at:]))
            at = len(log)
            await self.flush()
            if self.get_query_argument("follow", "") != "true" or self.scheduler.log_over:
                return
            await asyncio.sleep(0.02)


class _Verb(_Base):
    def post(self, sid: str, verb: str) -> None:
        session = self.scheduler.find(sid)
        if self.scheduler.refusal:
            raise self.scheduler.refusal
        session.asked.append((verb, json.loads(self.request.body)))
        self.finish(json.dumps(session.look()))


class _Owner(_Base):
    def put(self, sid: str) -> None:
        session = self.scheduler.find(sid)
        session.launch["owner_pid"] = json.loads(self.request.body)["owner_pid"]
        self.finish(json.dumps(session.look()))


class _Found(_Base):
    """What the next server of a user finds; nothing is suspended here."""

    def get(self) -> None:
        there = [s for s in self.scheduler.sessions if s.look()["process_state"] == "live"]
        notebooks = [
            {
                "session": {**s.json, "busy": False},
                "kernel_id": s.kernel_id,
                "connection": s.launch["connection"],
            }
            for s in there
        ]
        self.finish(json.dumps({"notebooks": notebooks}))


class _Cluster(_Base):
    def get(self) -> None:
        self.finish(json.dumps({"devices": [], "waiting": {}}))


class _Tiers(_Base):
    def get(self, user: str) -> None:
        self.finish(json.dumps({"tiers": ["basic"] if user == "ada/l" else ["premium", "basic"]}))


class _Events(_Base):
    """Server-sent events: a snapshot, then whatever the test appends to `Scheduler.events`."""

    async def get(self) -> None:
        if self.scheduler.refusal:
            raise self.scheduler.refusal
        self.set_header("Content-Type", "text/event-stream")
        last = self.request.headers.get("Last-Event-ID")
        told = int(last.removeprefix("fake-")) if last else 0
        self.scheduler.listeners += 1
        try:
            while True:
                for event, data in self.scheduler.events[told:]:
                    told += 1
                    text = f"event: {event}\ndata: {json.dumps(data)}\n" if event else ""
                    self.write(f"id: fake-{told}\n{text}\n")
                await self.flush()
                await asyncio.sleep(0.02)
                if self.request.connection.stream.closed():  # type: ignore[attr-defined]
                    return
        except StreamClosedError:
            return
        finally:
            self.scheduler.listeners -= 1


@contextmanager
def scheduler(folder: Path) -> Iterator[Scheduler]:
    """A running scheduler; all its sessions are ended afterwards."""
    found = Scheduler(folder)
    found.start()
    try:
        yield found
    finally:
        found.stop()
        for session in found.sessions:
            session.end()
