"""A process that has loaded torch, and becomes a device proxy whenever the node agent wants one.

Importing torch takes a second of a core; fork(2) takes milliseconds, and the copies share their
memory until they write to it. The template has used nothing of what it imported: it has one thread
and no device, so a copy of it is as good as a process of its own. Between the template and each
proxy stands a process that ends at once. So a proxy becomes a child of the agent, which takes in
what its children leave behind (PR_SET_CHILD_SUBREAPER, prctl(2)) and learns how it ended.

Where something that torch imports starts threads, nothing is copied: each proxy is started by
itself then, and the agent's log says so once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from singularity_proxy.capsule.launcher import CapsuleSpec, last_words, open_log, spawn
from singularity_proxy.capsule.process import ProcessIdentity, ProcessWatch
from singularity_proxy.capsule.tree import state_of
from singularity_proxy.errors import ProxyNotReady

log = logging.getLogger("singularity.agent")

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""In a template's environment: NumPy's OpenBLAS would start a thread for each core when it is
imported. PyTorch computes with libraries of its own, whose threads are chosen when a proxy is bound
to a session."""

READY_LIMIT_S = 120.0
"""How long a template may take to import torch, and a proxy from its start to its first answer."""

STOPPED_S = 1.0
"""A template or a proxy that is stopped (SIGSTOP) for so long while it is waited for is ended."""

_LOOK_S = 0.1
_MESSAGE_BYTES = 4096
_ROOM = 256
"""Bytes in the command line of a template for that of a proxy, which shows its socket."""


def proxy_command(socket_path: str) -> list[str]:
    """Return the command line of a device proxy that listens at `socket_path`."""
    return [sys.executable, "-m", "singularity_proxy.device", "--socket", socket_path, "--warm"]


# -- in the template ------------------------------------------------------------------------------


def serve_template(fd: int) -> str | None:
    """Fork for each socket path that comes over descriptor `fd`, now that torch is imported.
    Return that path in the new process, and None in the template when the agent is gone."""
    control = socket.socket(fileno=fd)
    if not _send(control, {"threads": _count_threads()}):
        return None
    while True:
        message, logs, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 1)
        if not message:
            return None
        wanted = json.loads(message)["socket"]
        try:
            pid = _fork_twice(partial(_become_proxy, wanted, logs[0]))
        except OSError as error:
            answer: dict[str, object] = {"error": error.strerror or str(error)}
        else:
            if pid == 0:
                control.close()
                return str(wanted)
            answer = {"pid": pid}
        os.close(logs[0])
        if not _send(control, answer):
            return None


def _count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _send(control: socket.socket, answer: Mapping[str, object]) -> bool:
    """Answer the agent. False: it is gone."""
    try:
        control.send(json.dumps(answer).encode())
    except OSError:
        return False
    return True


def _fork_twice(become: Callable[[], None]) -> int:
    """Make a process whose parent ends at once. Return its pid as soon as it has done `become`, and
    0 in the process itself. Raises: OSError when there can be none."""
    if (threads := _count_threads()) != 1:
        raise OSError(f"the process to be copied has {threads} threads")
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reader)
        try:
            pid = os.fork()
        except OSError as error:
            os.write(writer, f"-{error.errno}".encode())
            os._exit(1)
        if pid:
            os.write(writer, str(pid).encode())
            os._exit(0)
        become()
        os.close(writer)
        return 0
    os.close(writer)
    with open(reader, encoding="ascii") as told:
        number = int(told.read() or 0)
    os.waitpid(between, 0)
    if number <= 0:
        raise OSError(-number, os.strerror(-number))
    return number


def _become_proxy(socket_path: str, log: int) -> None:
    """Write to `log`, be in a process group of its own, and be called what a proxy is called."""
    os.setpgid(0, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    _show_command(proxy_command(socket_path))


def _show_command(words: list[str]) -> None:
    """Show `words` as the command line of this process (/proc/self/cmdline), in the memory of the
    one that it was started with: arg_start and arg_end of proc_pid_stat(5)."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    shown = b"\0".join(map(os.fsencode, words)) + b"\0"
    if 0 < start < end and len(shown) <= end - start:
        ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


# -- in the agent ---------------------------------------------------------------------------------


def why_ended(watch: ProcessWatch, log_path: str) -> str:
    """Return why a process that was being started is not ready: the signal that ended it, or the
    last that it wrote to its log."""
    code = watch.exit_code
    if not watch.alive and code is not None and code < 0:
        return f"it was ended by signal {-code}: {signal.strsignal(-code)}"
    return last_words(log_path) or "it said nothing"


class Template:
    """The template of an agent, started when the first proxy is wanted and again when it is gone.
    `log_path`: its log; `env`: the whole environment of it and of the proxies."""

    def __init__(self, log_path: str, env: Mapping[str, str]) -> None:
        self._log_path, self._env = log_path, env
        self.watch: ProcessWatch | None = None
        """Of the template; None: there is none now."""
        self._control: socket.socket | None = None
        self._turn = asyncio.Lock()
        self._closed = False
        self._threads = 1
        """More than one: a template has so many, and cannot be copied."""

    async def start(self, socket_path: str, log_path: str) -> ProcessIdentity:
        """Start a device proxy, which will listen at `socket_path`.

        Raises: ProxyNotReady, OSError or SingularityError when there is none."""
        fork = asyncio.ensure_future(self._fork(socket_path, log_path))
        try:
            return await asyncio.shield(fork)
        except asyncio.CancelledError:
            fork.add_done_callback(partial(_end_unwanted, (socket_path, log_path)))
            raise

    async def _fork(self, socket_path: str, log_path: str) -> ProcessIdentity:
        async with self._turn:
            if self._threads == 1 and (self.watch is None or not self.watch.alive):
                await self._begin()
            if self._threads != 1:
                command = proxy_command(socket_path)
                return spawn(CapsuleSpec(command, self._env, cwd="/", log_path=log_path))
            assert self._control is not None
            output = open_log(log_path, None, None)
            try:
                asked = json.dumps({"socket": socket_path}).encode()
                socket.send_fds(self._control, [asked], [output])
            except OSError as error:
                raise self._not_ready(str(error)) from None
            finally:
                os.close(output)
            answer = await self._receive()
        if "pid" not in answer:
            raise ProxyNotReady(f"a device proxy did not get ready ({answer.get('error')})")
        return ProcessIdentity.of(int(str(answer["pid"])))

    async def _begin(self) -> None:
        self._end()
        if self._closed:
            raise ProxyNotReady("a device proxy did not get ready (the node agent ends)")
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        number = its.fileno()
        command = [sys.executable, "-m", "singularity_proxy.device", "--template", str(number)]
        with its:
            identity = spawn(
                CapsuleSpec(
                    argv=[*command, "--room", "." * _ROOM],
                    env={**ONE_THREAD, **self._env},
                    cwd="/",
                    log_path=self._log_path,
                    pass_fds=(number,),
                )
            )
        self._control, self.watch = ours, ProcessWatch(identity)
        self._threads = int(str((await self._receive())["threads"]))
        if self._threads != 1:
            log.warning(
                "device proxies are started one by one, each in seconds, because what PyTorch "
                "imports on this machine starts threads (%d): a process with threads is not copied",
                self._threads,
            )
            self._end()

    async def _receive(self) -> dict[str, object]:
        """Wait for what the template says; ends one that says nothing.

        Raises: ProxyNotReady, with the reason."""
        assert self._control is not None
        assert self.watch is not None
        try:
            message = await _read_message(self._control, self.watch)
        except OSError as error:
            raise self._not_ready(str(error)) from None
        if not message:
            await self.watch.wait(STOPPED_S)
            raise self._not_ready(why_ended(self.watch, self._log_path))
        answer: dict[str, object] = json.loads(message)
        return answer

    def _not_ready(self, why: str) -> ProxyNotReady:
        """Give the template up, and return the error that says why."""
        code = self.watch.exit_code if self.watch is not None else None
        self._end()
        return ProxyNotReady(f"a device proxy did not get ready ({why})", exit_code=code)

    def _end(self) -> None:
        if self.watch is not None:
            self.watch.signal(signal.SIGKILL)
        if self._control is not None:
            self._control.close()
        self.watch = self._control = None

    async def close(self) -> None:
        """End the template; proxies go on."""
        self._closed = True
        if self.watch is not None:
            self.watch.signal(signal.SIGKILL)
            await self.watch.wait(10)
        async with self._turn:  # whoever waits for its answer has heard of its end
            self._end()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._log_path)


async def _read_message(control: socket.socket, template: ProcessWatch) -> bytes:
    """Read what comes next from a template; nothing: it has ended.

    Raises: OSError; TimeoutError with the reason when it is stopped or too slow."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    ran, until = loop.time(), loop.time() + READY_LIMIT_S
    # Not `sock_recv` with a time limit: what comes at that very moment would be lost.
    loop.add_reader(control, readable.set)
    try:
        while True:
            readable.clear()
            with contextlib.suppress(BlockingIOError):
                return control.recv(_MESSAGE_BYTES)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await readable.wait()
            now = loop.time()
            if state_of(template.pid) not in ("T", "t"):
                ran = now
            if now - ran > STOPPED_S:
                raise TimeoutError("it was stopped")
            if now > until:
                raise TimeoutError(f"it took longer than {READY_LIMIT_S:g} s")
    finally:
        loop.remove_reader(control)


def _end_unwanted(files: Sequence[str], fork: asyncio.Future[ProcessIdentity]) -> None:
    """End a proxy for which nobody waits any more, and remove its files."""
    if not fork.cancelled() and fork.exception() is None:
        ProcessWatch(fork.result()).signal(signal.SIGKILL)
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
