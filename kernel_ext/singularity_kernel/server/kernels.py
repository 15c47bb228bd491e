"""`SingularityKernelManager`: kernels that a stopped server leaves and the next one finds again.

* A server that stops lets its kernels go: nothing is sent to them. A kernel that somebody shuts
  down or restarts ends as ever.
* A server that starts asks the scheduler for the sessions of the server before it and lists them
  under their old kernel ids, running or suspended. Those that were in the middle of a cell come
  back at once, the others when a page opens them or somebody asks them something.
* A session whose relay is gone is listed as well; it gets another one when it comes back (`apart`).
* What kernels said while no page was there is kept for the page that had asked (`outputs`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from jupyter_client.kernelspec import NoSuchKernel
from jupyter_client.provisioning import KernelProvisionerFactory
from jupyter_server._tz import utcnow
from jupyter_server.prometheus.metrics import KERNEL_CURRENTLY_RUNNING_TOTAL
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from singularity_proxy.errors import SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient
from tornado.ioloop import IOLoop
from traitlets import Float, Integer, default

from singularity_kernel.provision.pauses import pauses
from singularity_kernel.provision.provisioner import Mode, SingularityProvisioner

from .apart import Apart
from .calling import call_back
from .closing import ServedKernelManager
from .forks import Forks
from .found import Asked, newest
from .leaving import leave
from .notes import Notes, server_folder, server_name
from .outputs import Kept, KeptStream, Message, Replay, Waiting, asker_of, is_connected
from .status import answer_status, not_known_yet

Json = dict[str, Any]

ASKER = f"singularity-{os.getpid()}"
"""The name under which this server asks a kernel that it finds again."""

ANSWER_S = 2.0
"""How long it waits for the first word of that kernel. A relay answers for one that is away."""

PAGES = 4
"""So many pages of a kernel, the last ones, may come back and get what they asked for."""

OWN_CHANNELS = ("shell", "control", "stdin")


class SingularityKernelManager(AsyncMappingKernelManager):  # type: ignore[misc]
    """Kernel manager of single-user servers that hibernate; set by the Spawner."""

    hibernates = True
    """What stops such a server suspends its kernels' sessions."""

    restore_wait_s = Float(
        10.0,
        config=True,
        help="""Seconds that a request for kernels waits, after the start of the server, for the
        scheduler to say which ones there are. Then lists are refused (504) while one of the server
        before is not known yet, and pages ask again.""",
    )
    waiting_output_bytes = Integer(
        64 << 20,
        min=0,
        config=True,
        help="""Bytes of output of one kernel that are kept, in memory and in the user's data
        folder, for a page that is away. Beyond that the oldest is dropped, and the log says so.
        0: none.""",
    )

    @default("kernel_manager_class")  # type: ignore[untyped-decorator]
    def _default_kernel_manager_class(self) -> str:
        return f"{ServedKernelManager.__module__}.{ServedKernelManager.__name__}"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._notes = Notes(server_folder())
        self._waiting: dict[str, Waiting] = {}
        self._kept: dict[str, Kept] = {}
        self._returning: dict[str, object] = {}
        """Pages (session keys) that have streams and were not sent yet what waits for them; with
        the connection that it is to be sent to."""
        self._asleep: set[str] = set()
        """Kernels that were suspended when this server started and that nobody has opened."""
        self._apart = Apart()
        self._sessions = Asked(self._ask_sessions)
        self._forks = Forks(self._notes, self, self.parent)
        self._stopping = False
        self._restoring: asyncio.Task[None] | None = None
        self._restored_by = 0.0
        self._jobs: set[asyncio.Task[None]] = set()
        IOLoop.current().add_callback(self._begin)

    # -- start of the server ----------------------------------------------------------------

    async def _begin(self) -> None:
        """The server's loop runs."""
        stop = getattr(self.parent, "_signal_stop", None)
        # The Hub says SIGINT first. Jupyter's loop ends by that at once, and the process lives on
        # for seconds, connected to kernels whose output nobody reads: an orderly stop instead.
        if stop and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, stop)
        if self.parent is not None:
            answer_status(self.parent)
        await self.restored()

    async def restored(self) -> bool:
        """Wait until the kernels of the server before are listed; False when they are not within
        `restore_wait_s` of the first call, at the start: then nobody waits, and they appear
        later."""
        now = asyncio.get_running_loop().time()
        if self._restoring is None:
            self._restoring = asyncio.create_task(self._restore())
            self._restored_by = now + self.restore_wait_s
        if not self._restoring.done():
            await asyncio.wait({self._restoring}, timeout=max(0.0, self._restored_by - now))
        return self._restoring.done()

    async def _restore(self) -> None:
        user = os.environ.get("JUPYTERHUB_USER", "")
        if not user or not os.environ.get("SINGULARITY_API_URL"):
            return
        told = False
        for pause in pauses():
            try:
                client = ServiceClient.from_environment()
                found = await client.suspended(user, server_name(), live=True)
                break
            except SingularityError as error:
                if not told:
                    self.log.warning(
                        "Singularity: which kernels there are is not known yet: %s", error.message
                    )
                told = True
            await asyncio.sleep(pause)
        self._notes.keep_only({str(item["kernel_id"]) for item in found} | set(self._kernels))
        await asyncio.gather(*(self._try_attach(item, client) for item in newest(found)))

    async def _try_attach(self, item: Json, client: ServiceClient) -> None:
        try:
            await self._attach(item, client)
        except Exception as error:  # of one kernel: the others are listed all the same
            self.log.warning(
                "Singularity: session %s could not be connected, it stays as it is: %s",
                item["session"]["id"],
                error,
                exc_info=True,
            )

    async def _attach(self, item: Json, client: ServiceClient) -> None:
        """List one session as a kernel."""
        session, kernel_id, connection = item["session"], item["kernel_id"], item["connection"]
        if not kernel_id or kernel_id in self or self._stopping:
            return
        if source := session.get("forked_from"):
            self._notes.inherit(kernel_id, source)
        self._notes.note_session(kernel_id, session["id"])
        km = self._manager_of(kernel_id, connection)
        note = self._notes.of(kernel_id)
        provisioner = KernelProvisionerFactory.instance(parent=self).create_provisioner_instance(
            kernel_id, km.kernel_spec, parent=km
        )
        if not isinstance(provisioner, SingularityProvisioner):
            raise TypeError(f"the provisioner of {km.kernel_name} is another one")
        await provisioner.load_provisioner_info(
            {
                "kernel_id": kernel_id,
                "connection_info": _as_text(km.get_connection_info()),
                **dict.fromkeys(("pid", "pgid", "ip")),
                "singularity": {"mode": Mode.SESSION.value, "session": session["id"]},
            }
        )
        if self._stopping:  # what is listed after this would be ended, and not let go
            return
        provisioner.cwd = note.get("cwd") or self.root_dir
        km.provisioner = provisioner
        env = {**os.environ, "JPY_SESSION_NAME": note.get("notebook") or session["name"]}
        km._launch_args = {"cwd": provisioner.cwd, "env": env}
        km._attempted_start = True
        if connection:
            km.ready.set_result(None)
        else:
            self._apart.add(kernel_id, km, partial(self._opened, kernel_id))
        km.execution_state = "busy" if session["busy"] else "idle"
        km._kernel_info_future = _answered()
        self._kernels[kernel_id] = km
        self._kernel_connections[kernel_id] = 0
        self._kernel_ports[kernel_id] = km.ports
        km.reason, km.last_activity = "", utcnow()
        if connection:
            await self._collect(kernel_id)
            if kernel_id not in self:  # it was let go meanwhile
                return
            self.start_watching_activity(kernel_id)
            km._connect_control_socket()
        km.start_restarter()
        self.add_restart_callback(kernel_id, partial(self._handle_kernel_died, kernel_id), "dead")
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=km.kernel_name).inc()
        if not self._initialized_culler:
            self.initialize_culler()
        self._do(self._take_over(client, session))
        if session["process_state"] != "live":
            self._asleep.add(kernel_id)
            if session["busy"]:
                self._opened(kernel_id)
        self.log.info(
            "Singularity: session %s (%s) is kernel %s again%s",
            session["id"],
            session["process_state"],
            kernel_id,
            "" if connection else "; it has no connection until it has come back",
        )

    def may_come(self, kernel_id: str) -> bool:
        """Whether a kernel is not listed, and the scheduler may yet name it."""
        return kernel_id not in self and not self._notes.is_gone(kernel_id)

    async def find_again(self, session: str) -> Json | None:
        """List a session whose end was taken back while this server runs; called by the handler of
        that verb. Returns its `kernel_id` and its `notebook` ("": not known); None when it is not a
        notebook of this server. Raises what the scheduler refuses."""
        item = await self._list_again(lambda item: item["session"]["id"] == session)
        if item is None:
            return None
        kernel_id = str(item["kernel_id"])
        return {"kernel_id": kernel_id, "notebook": self._notes.of(kernel_id).get("notebook", "")}

    async def find_fork(self, session: str) -> Json | None:
        """List a fork, with a notebook of its own where that of the first session is known; called
        when one was asked for, and when one is heard of. As `find_again`."""
        return await self._forks.find(session)

    def find_listed(self, session: str) -> str | None:
        """Return the id of the kernel that has a session now; None: it is not listed."""
        for kernel_id, km in self._kernels.items():
            if getattr(km.provisioner, "session_id", None) == session:
                return str(kernel_id)
        return None

    async def find_kernel_of(self, notebook: str) -> str | None:
        """List the session that a notebook had before, if its end was taken back meanwhile by
        somebody else than this server (on the command line, in the dashboard); called before a
        notebook gets a new kernel. Returns its kernel id."""
        gone = self._notes.gone_of(notebook)
        if not gone:
            return None
        try:
            item = await self._list_again(lambda item: item["kernel_id"] in gone)
            return None if item is None else str(item["kernel_id"])
        except Exception as error:  # the notebook opens all the same, or its start says why not
            self.log.warning(
                "Singularity: the session that %s had before could not be looked for: %s",
                notebook,
                error,
                exc_info=not isinstance(error, SingularityError),
            )
            return None

    async def _list_again(self, wanted: Callable[[Json], bool]) -> Json | None:
        """List the first `wanted` session of this server that is there; what the scheduler says of
        it."""
        item = await self.look_up(wanted)
        return item if item is not None and await self.list_session(item) else None

    async def look_up(self, wanted: Callable[[Json], bool]) -> Json | None:
        """Return what the scheduler says of the first `wanted` session of this server that is
        there. Raises `Unavailable` while the kernels of the server before are not listed yet."""
        if not os.environ.get("JUPYTERHUB_USER"):
            return None
        if not await self.restored():
            raise Unavailable("which sessions this server has is not known yet")
        found = await self._sessions.get()
        return next((one for one in found if one["kernel_id"] and wanted(one)), None)

    async def _ask_sessions(self) -> list[Json]:
        client, user = ServiceClient.from_environment(), os.environ["JUPYTERHUB_USER"]
        return await client.suspended(user, server_name(), live=True)

    async def list_session(self, item: Json) -> bool:
        """List a session that was looked up, as a kernel; False when the server stops."""
        kernel_id = str(item["kernel_id"])
        self._notes.mark_back(kernel_id)
        await self._attach(item, ServiceClient.from_environment())
        return kernel_id in self

    def _manager_of(self, kernel_id: str, connection: Json | None) -> Any:
        told = (connection or {}).get("kernel_name")
        name = self._notes.of(kernel_id).get("kernel_name") or told
        km, _, _ = self.pre_start_kernel(name or None, {"kernel_id": kernel_id})
        try:
            _ = km.kernel_spec
        except NoSuchKernel:
            km.kernel_name = self.default_kernel_name
        km.kernel_id = kernel_id
        km.cache_ports = False
        if connection:
            km.load_connection_info(connection)
            km.write_connection_file()
        return km

    async def _take_over(self, client: ServiceClient, session: Json) -> None:
        try:
            await client.own(session["id"], os.getpid())
        except SingularityError as error:
            self.log.warning(
                "Singularity: session %s does not notice when this server ends: %s",
                session["id"],
                error.message,
            )

    def _opened(self, kernel_id: str) -> None:
        """Somebody wants this kernel: bring it back, if it is still away."""
        if kernel_id in self._asleep:
            self._asleep.discard(kernel_id)
            self._do(self._wake(kernel_id, self._kernels[kernel_id].provisioner.session_id))

    async def _wake(self, kernel_id: str, session: str) -> None:
        waits = partial(self._apart.__contains__, kernel_id)
        if not await call_back(session, waits, self.log) and waits():
            self._asleep.add(kernel_id)  # whoever opens it again tries again

    def _do(self, job: Any) -> None:
        task = asyncio.ensure_future(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    # -- kernels that begin and end ---------------------------------------------------------

    async def _async_start_kernel(self, **kwargs: Any) -> str:
        """Start a kernel, or find it when it is one of the server before."""
        await self.restored()
        kernel_id: str = await super()._async_start_kernel(**kwargs)
        km = self._kernels[kernel_id]
        self._notes.mark_back(kernel_id)
        self._notes.note_session(kernel_id, getattr(km.provisioner, "session_id", None))
        env = kwargs.get("env") or {}
        if "notebook" not in self._notes.of(kernel_id):
            self._notes.note(
                kernel_id,
                kernel_name=km.kernel_name,
                cwd=str(getattr(km.provisioner, "cwd", None) or ""),
                notebook=env.get("JPY_SESSION_NAME", ""),
            )
        return kernel_id

    start_kernel = _async_start_kernel

    def update_env(self, *, kernel_id: str, env: dict[str, str]) -> None:
        """A notebook was renamed; called by the session manager."""
        super().update_env(kernel_id=kernel_id, env=env)
        if kernel_id in self and "JPY_SESSION_NAME" in env:
            self._notes.note(kernel_id, notebook=env["JPY_SESSION_NAME"])

    async def list_kernels(self) -> list[Json]:
        """Those that there are; called by the REST handlers. Raises 504 while it is not known what
        became of those of the server before: a page drops a kernel that is not listed."""
        if not await self.restored() and any(map(self.may_come, self._notes.expected())):
            raise not_known_yet("which kernels there are")
        found: list[Json] = super().list_kernels()
        return found

    async def _async_shutdown_kernel(
        self, kernel_id: str, now: bool = False, restart: bool = False
    ) -> Any:
        """Somebody shuts this kernel down: its session ends."""
        now = self._apart.end(kernel_id) or now  # it cannot be asked to end by itself
        await super()._async_shutdown_kernel(kernel_id, now=now, restart=restart)
        if not restart and kernel_id not in self:
            self._notes.mark_gone(kernel_id)

    shutdown_kernel = _async_shutdown_kernel

    async def _async_restart_kernel(self, kernel_id: str, now: bool = False) -> Any:
        """Somebody restarts this kernel: its session ends, and another one begins."""
        now = self._apart.end(kernel_id) or now
        done = await super()._async_restart_kernel(kernel_id, now=now)
        provisioner = self._kernels[kernel_id].provisioner
        self._notes.note_session(kernel_id, getattr(provisioner, "session_id", None))
        return done

    restart_kernel = _async_restart_kernel

    def _handle_kernel_died(self, kernel_id: str) -> None:
        self._close_streams(kernel_id)
        self._outputs(kernel_id).forget()
        self._waiting.pop(kernel_id).close()
        self._notes.mark_gone(kernel_id)
        self._apart.end(kernel_id)
        super()._handle_kernel_died(kernel_id)

    async def _async_shutdown_all(self, now: bool = False) -> None:
        """The server stops: sessions are left to the platform, other kernels end."""
        self._stopping = True
        await self._forks.stop()
        for job in list(self._jobs):
            job.cancel()
        if self._restoring is not None:
            self._restoring.cancel()
        ours = {
            kernel_id: km
            for kernel_id, km in self._kernels.items()
            if getattr(km.provisioner, "mode", None) is Mode.SESSION
        }
        left = await asyncio.gather(*map(self._leave, ours), return_exceptions=True)
        for (kernel_id, km), whole in zip(ours.items(), left, strict=True):
            if whole is not True:
                self.log.warning(
                    "Singularity: what kernel %s said last may be missing in its notebook (%s)",
                    kernel_id,
                    whole or "its relay does not answer",
                )
            self._let_go(kernel_id, km)
        await super()._async_shutdown_all(now=now)

    shutdown_all = _async_shutdown_all

    async def _leave(self, kernel_id: str) -> bool:
        """Hear all that was sent to this server, and let pages have it; see `leaving`."""
        self.stop_watching_activity(kernel_id)
        return await leave(kernel_id, self._kept.get(kernel_id))

    def _let_go(self, kernel_id: str, km: Any) -> None:
        km.shutting_down = True
        self._apart.end(kernel_id)
        km.stop_restarter()
        self.stop_watching_activity(kernel_id)
        self._close_streams(kernel_id)
        if kernel_id in self._waiting:
            self._waiting.pop(kernel_id).close()
        km._close_control_socket()
        km.provisioner.let_go()
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=km.kernel_name).dec()
        self.remove_kernel(kernel_id)
        self.log.info("Singularity: kernel %s is left to the platform", kernel_id)

    # -- outputs without a page -------------------------------------------------------------

    async def _collect(self, kernel_id: str) -> None:
        """Keep what a kernel says from now on for the pages that are away, and what its relay has
        kept since the server before. The relay gives that once, a moment after somebody has
        subscribed: so this stream is the first, and it is waited for until it has heard something,
        be it the answer to a question of our own."""
        km, heard = self._kernels[kernel_id], asyncio.Event()

        def keep(parts: list[bytes]) -> None:
            if asker_of(parts) == ASKER:
                heard.set()
            self._keep(kernel_id, "iopub", parts)

        kept = self._kept[kernel_id] = Kept(KeptStream(km.connect_iopub(), keep), {})
        for page in self._notes.of(kernel_id).get("pages") or ():
            if is_connected(f"{kernel_id}:{page}"):
                continue  # it was quicker, and is answered on streams of its own
            kept.pages[page] = streams = self._page_streams(km, str(page))
            for channel, stream in streams.items():
                stream.on_recv(partial(self._keep, kernel_id, channel))
        asker = km.connect_control(identity=ASKER.encode())
        try:
            question = km.session.msg("kernel_info_request")
            question["header"]["session"] = ASKER
            km.session.send(asker, question)
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(heard.wait(), ANSWER_S)
        finally:
            asker.close(linger=1000)

    def _page_streams(self, km: Any, page: str) -> dict[str, Any]:
        """The streams on which one page alone is answered: the kernel knows it by its name."""
        streams = {n: getattr(km, f"connect_{n}")(identity=page.encode()) for n in OWN_CHANNELS}
        for name, stream in streams.items():
            stream.channel = name
        return streams

    def moved(self, kernel_id: str) -> None:
        """The kernel is reached at other ports, and its pages are about to come back; called by
        `reconnect`. What is kept for them is kept on."""
        self._close_streams(kernel_id)
        self._kernel_ports[kernel_id] = self._kernels[kernel_id].ports
        self._do(self._reached(kernel_id))

    async def _reached(self, kernel_id: str) -> None:
        await self._collect(kernel_id)
        if kernel_id in self._apart:
            km = self._kernels[kernel_id]
            km._connect_control_socket()
            session = {"id": km.provisioner.session_id}
            self._do(self._take_over(ServiceClient.from_environment(), session))
            self._apart.end(kernel_id)

    def _outputs(self, kernel_id: str) -> Waiting:
        if kernel_id not in self._waiting:
            path = self._notes.outputs(kernel_id)
            self._waiting[kernel_id] = Waiting(path, self.waiting_output_bytes)
        return self._waiting[kernel_id]

    def _keep(self, kernel_id: str, channel: str, parts: list[bytes]) -> None:
        asker = asker_of(parts)
        page = f"{kernel_id}:{asker}"
        if asker != ASKER and (page in self._returning or not is_connected(page)):
            self._outputs(kernel_id).add(channel, parts)

    def start_buffering(self, kernel_id: str, session_key: str, channels: dict[str, Any]) -> None:
        """The last page of a kernel has left; called by its connection."""
        self._check_kernel_id(kernel_id)
        page, streams = session_key.rpartition(":")[2], dict(channels)
        if not self.buffer_offline_messages:
            for stream in streams.values():
                stream.close()
            return
        kept = self._kept.setdefault(kernel_id, Kept(None, {}))
        channels.clear()  # a connection that was not ready yet would take them again
        iopub = streams.pop("iopub", None)
        if iopub is None:
            pass
        elif kept.iopub is not None:  # it collects for another page that is away, and this one
            iopub.close()
        else:
            kept.iopub = self._kept_iopub(kernel_id, iopub)
        for channel, stream in streams.items():
            stream.on_recv(partial(self._keep, kernel_id, channel))
        kept.pages[page] = streams

    def get_buffer(self, kernel_id: str, session_key: str) -> dict[str, Any] | None:
        """A page connects: what waits, if it waits for this one; called by its connection."""
        self._opened(kernel_id)
        kept, page = self._kept.get(kernel_id), session_key.rpartition(":")[2]
        known = [p for p in self._notes.of(kernel_id).get("pages") or () if p != page]
        pages = [*known, page][-PAGES:]
        self._notes.note(kernel_id, pages=pages)
        self._outputs(kernel_id).keep_only(pages)
        for stream in kept.leave_only(pages) if kept else ():
            stream.close()
        if kept is None or not (page in kept.pages or page in self._outputs(kernel_id).askers):
            return None
        km, channels = self._kernels[kernel_id], kept.take(page)
        if "iopub" not in channels:
            iopub = km.connect_iopub(identity=page.encode())
            channels["iopub"] = self._kept_iopub(kernel_id, iopub)
        if len(channels) == 1:
            channels |= self._page_streams(km, page)
        if not kept.pages:
            del self._kept[kernel_id]
        here = self._returning[session_key] = object()
        messages = Replay(partial(self._returned, kernel_id, session_key, here), session_key)
        return {"session_key": session_key, "buffer": messages, "channels": channels}

    def _kept_iopub(self, kernel_id: str, stream: Any) -> KeptStream:
        return KeptStream(stream, partial(self._keep, kernel_id, "iopub"))

    def _returned(self, kernel_id: str, session_key: str, here: object) -> list[Message]:
        """What a page is sent now; from then on it has its streams. Nothing when it has left, or
        come anew."""
        if self._returning.get(session_key) is not here:
            return []
        del self._returning[session_key]
        if kernel_id not in self or not is_connected(session_key):
            return []
        return self._outputs(kernel_id).take(session_key.rpartition(":")[2])

    def stop_buffering(self, kernel_id: str) -> None:
        """The kernel ends: nobody needs what waits; called by `shutdown_kernel`."""
        self._check_kernel_id(kernel_id)
        self._close_streams(kernel_id)
        self._outputs(kernel_id).forget()
        del self._waiting[kernel_id]

    def _close_streams(self, kernel_id: str) -> None:
        kept = self._kept.pop(kernel_id, None)
        for stream in kept.streams() if kept else ():
            if not stream.closed():
                stream.flush()
                stream.close()


def _answered() -> Future[Json]:
    """The answer to "which protocol?", without asking: a kernel in the middle of a cell answers
    when that is over, and all speak version 5."""
    future: Future[Json] = Future()
    future.set_result({})
    return future


def _as_text(connection: Json) -> Json:
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in connection.items()}
