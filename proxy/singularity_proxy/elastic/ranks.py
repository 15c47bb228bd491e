"""Starts one program as several ranks, as `torchrun` does, and stays with them to their end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

GRACE_S = 5.0
"""From one signal to the next harder one, when ranks are told to end."""

LOOK_S = 0.05
"""A rank that ended is noticed within this."""

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


class RankFailed(Exception):
    """A rank ended with an error, so the others were ended too."""

    def __init__(self, rank: int, code: int) -> None:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        super().__init__(f"rank {rank} ended with {how}; the other ranks were ended")
        self.rank = rank
        self.code = code
        """As `subprocess`: minus the number of the signal that ended it."""


def environments(ranks: int, environ: Mapping[str, str]) -> list[dict[str, str]]:
    """What each rank gets more than `environ`, as `torchrun` names it. An address and port for the
    ranks to meet at that `environ` has is kept."""
    same = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "NODE_RANK": "0",
        "MASTER_ADDR": environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": environ.get("MASTER_PORT") or str(_free_port()),
    }
    return [{**same, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def run_ranks(
    command: Sequence[str],
    ranks: int,
    environ: Mapping[str, str],
    write: Callable[[int, str], None] | None = None,
) -> None:
    """Run `command` as `ranks` processes to their end; called by whoever waits for them anyway.

    `write(rank, line)` gets what they print, line by line (None: they print where this process
    does). Raises RankFailed for the first that fails, after all have ended. Ctrl-C (and any other
    exception) interrupts the ranks as well and is raised again when they have ended; when this
    process is killed they are killed with it.
    """
    started: list[subprocess.Popen[bytes]] = []
    lines = _Lines(write) if write is not None else None
    failed: RankFailed | None = None
    try:
        for more in environments(ranks, environ):
            started.append(_start(command, {**environ, **more}, lines is not None))
            if lines is not None:
                lines.follow(len(started) - 1, started[-1])
        while failed is None and any(child.poll() is None for child in started):
            _look(lines)
            failed = _first_failure(started)
    except BaseException:
        _end(started, lines, (signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
        raise
    failed = failed or _first_failure(started)
    if failed is not None:
        _end(started, lines, (signal.SIGTERM, signal.SIGKILL))
    if lines is not None:
        lines.rest()
    if failed is not None:
        raise failed


def _start(
    command: Sequence[str], environ: Mapping[str, str], piped: bool
) -> subprocess.Popen[bytes]:
    """In a process group of its own: its children are signalled with it, and a Ctrl-C of the
    terminal reaches it once, through us."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL}
    if piped:
        streams |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    parent = os.getpid()

    def prepare() -> None:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it was killed between the fork and the call
            os._exit(1)

    # What `prepare` calls needs no lock that another thread may hold now.
    return subprocess.Popen(list(command), env=dict(environ), preexec_fn=prepare, **streams)  # noqa: PLW1509


def _look(lines: _Lines | None) -> None:
    if lines is None:
        time.sleep(LOOK_S)
    else:
        lines.read(LOOK_S)


def _first_failure(started: Sequence[subprocess.Popen[bytes]]) -> RankFailed | None:
    for rank, child in enumerate(started):
        if code := child.poll():
            return RankFailed(rank, code)
    return None


def _end(
    started: Sequence[subprocess.Popen[bytes]], lines: _Lines | None, signals: Sequence[int]
) -> None:
    """One signal after the other until all have ended; what they print meanwhile is passed on."""
    try:
        for number in signals:
            _signal(started, number)
            until = time.monotonic() + GRACE_S
            while any(child.poll() is None for child in started) and time.monotonic() < until:
                _look(lines)
    finally:  # also when somebody is impatient
        _signal(started, signal.SIGKILL)
        for child in started:
            child.wait()


def _signal(started: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    """To all ranks and what they have started."""
    for child in started:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class _Lines:
    """What ranks print, in whole lines."""

    def __init__(self, write: Callable[[int, str], None]) -> None:
        self._write = write
        self._selector = selectors.DefaultSelector()
        self._begun: dict[int, bytes] = {}

    def follow(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        self._selector.register(child.stdout, selectors.EVENT_READ, rank)

    def read(self, timeout: float) -> bool:
        """Pass on what is there; False when nothing came."""
        if not self._selector.get_map():
            time.sleep(timeout)
            return False
        ready = self._selector.select(timeout)
        for key, _ in ready:
            self._take(key.data, key.fileobj)  # type: ignore[arg-type]
        return bool(ready)

    def rest(self) -> None:
        """All have ended: what is in the pipes, and lines without an end."""
        while self._selector.get_map() and self.read(0.0):
            pass
        for rank, begun in self._begun.items():
            if begun:
                self._write(rank, begun.decode(errors="replace") + "\n")
        self._begun.clear()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _take(self, rank: int, pipe: IO[bytes]) -> None:
        data = os.read(pipe.fileno(), 1 << 16)
        if not data:
            self._selector.unregister(pipe)
            pipe.close()
            return
        *whole, begun = (self._begun.get(rank, b"") + data).split(b"\n")
        self._begun[rank] = begun
        for line in whole:
            self._write(rank, line.decode(errors="replace") + "\n")


def script(path: str, *arguments: str) -> list[str]:
    """The command that runs a Python script with this interpreter."""
    return [sys.executable, path, *arguments]
