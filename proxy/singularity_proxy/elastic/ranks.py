"""Starts one program as several ranks, as `torchrun` does, and stays with them to their end.

In a part of a gang, a session that runs the program together with sessions on other nodes, these
are some of its ranks only: the node agent says so in `PART`, and in nothing else.
"""

from __future__ import annotations

import codecs
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

PIECE_S = 0.25
"""A line without an end, such as a progress bar, is passed on within this as far as it goes."""

PART = "SINGULARITY_GANG"
"""Variable of a session that is a part of a gang: "number/parts". What its ranks start themselves
is no part of it, so they do not have it."""

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


def part_of(environ: Mapping[str, str]) -> tuple[int, int]:
    """(number, parts) of the gang whose part `environ` says that this session is; (0, 1): none."""
    number, _, parts = environ.get(PART, "").partition("/")
    return (int(number), int(parts)) if parts else (0, 1)


def environments(ranks: int, environ: Mapping[str, str]) -> list[dict[str, str]]:
    """What each of the `ranks` of this node gets more than `environ`, as `torchrun` names it. An
    address and port for the ranks to meet at that `environ` has is kept."""
    number, parts = part_of(environ)
    same = {
        "WORLD_SIZE": str(parts * ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": str(number),
        "GROUP_WORLD_SIZE": str(parts),
        "NODE_RANK": str(number),
        "MASTER_ADDR": environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": environ.get("MASTER_PORT") or str(free_port()),
        **({PART: ""} if parts > 1 else {}),
    }
    first = first_rank(ranks, environ)
    return [
        {**same, "RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(ranks)
    ]


def first_rank(ranks: int, environ: Mapping[str, str]) -> int:
    """The lowest number of the `ranks` that run here: 0, but in a part of a gang."""
    return part_of(environ)[0] * ranks


def run_ranks(
    command: Sequence[str],
    ranks: int,
    environ: Mapping[str, str],
    write: Callable[[int, str], None] | None = None,
    *,
    pieces: bool = False,
) -> None:
    """Run `command` as `ranks` processes to their end; called by whoever waits for them anyway.
    Ranks are told by their number among all of the program, also those on other nodes.

    `write(rank, line)` gets what they print, line by line (None: they print where this process
    does). With `pieces` it gets what there is of a line that has no end for `PIECE_S`, and what it
    gets next of that rank goes on with it.
    Raises RankFailed for the first that fails, after all have ended. Ctrl-C (and any other
    exception) interrupts the ranks as well and is raised again when they have ended; when this
    process is killed they are killed with it. What ranks have started and left behind is ended
    with the last of them, unless it went into a process group of its own.
    """
    started: list[subprocess.Popen[bytes]] = []
    lines = _Lines(write, pieces) if write is not None else None
    first = first_rank(ranks, environ)
    failed: RankFailed | None = None
    try:
        for more in environments(ranks, environ):
            started.append(_start(command, {**environ, **more}, lines is not None))
            if lines is not None:
                lines.follow(first + len(started) - 1, started[-1])
        while failed is None and any(_code(child) is None for child in started):
            _look(lines)
            failed = _first_failure(started, first)
    except BaseException:
        _end(started, lines, (signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
        raise
    failed = failed or _first_failure(started, first)
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


def _code(child: subprocess.Popen[bytes]) -> int | None:
    """Its exit code once it has ended. It is not reaped before everything is over: its pid is the
    number of its group too, and nobody else may get that meanwhile."""
    if child.returncode is not None:
        return child.returncode
    ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _living(started: Sequence[subprocess.Popen[bytes]]) -> set[int]:
    """Groups of ranks in which a process runs; one that has ended and was not reaped does not."""
    groups = {child.pid for child in started if child.returncode is None}
    found = set()
    for name in os.listdir("/proc") if groups else ():
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="latin-1") as file:
            state, _, group = file.read().rpartition(")")[2].split()[:3]
            if state not in "ZX" and int(group) in groups:
                found.add(int(group))
    return found


def _first_failure(started: Sequence[subprocess.Popen[bytes]], first: int) -> RankFailed | None:
    for rank, child in enumerate(started, first):
        if code := _code(child):
            return RankFailed(rank, code)
    return None


def _end(
    started: Sequence[subprocess.Popen[bytes]], lines: _Lines | None, signals: Sequence[int]
) -> None:
    """One signal after the other until all have ended, and what they have started; what they print
    meanwhile is passed on. Reaps them."""
    try:
        for number in signals:
            if not _living(started):
                break
            _signal(started, number)
            until = time.monotonic() + GRACE_S
            while _living(started) and time.monotonic() < until:
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


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class _Lines:
    """What ranks print, in whole lines, or in pieces of those that take their time."""

    def __init__(self, write: Callable[[int, str], None], pieces: bool) -> None:
        self._write = write
        self._pieces = pieces
        self._selector = selectors.DefaultSelector()
        self._decoders: dict[int, codecs.IncrementalDecoder] = {}
        self._begun: dict[int, str] = {}
        """What was not passed on of a rank's last line."""
        self._since: dict[int, float] = {}
        """Since when."""
        self._open: set[int] = set()
        """Ranks whose last line was passed on without its end."""

    def follow(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        self._decoders[rank] = codecs.getincrementaldecoder("utf-8")("replace")
        self._selector.register(child.stdout, selectors.EVENT_READ, rank)

    def read(self, timeout: float) -> bool:
        """Pass on what is there; False when nothing came."""
        ready = []
        if self._selector.get_map():
            ready = self._selector.select(timeout)
        else:
            time.sleep(timeout)
        for key, _ in ready:
            self._take(key.data, key.fileobj)  # type: ignore[arg-type]
        late = time.monotonic() - PIECE_S
        for rank in [rank for rank, since in self._since.items() if since <= late]:
            if self._pieces:
                self._pass(rank, self._begun.pop(rank))
        return bool(ready)

    def rest(self) -> None:
        """All have ended: what is in the pipes, and lines without an end."""
        while self._selector.get_map() and self.read(0.0):
            pass
        for rank, decoder in self._decoders.items():
            begun = self._begun.pop(rank, "") + decoder.decode(b"", final=True)
            if begun or rank in self._open:
                self._pass(rank, begun + "\n")
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _take(self, rank: int, pipe: IO[bytes]) -> None:
        data = os.read(pipe.fileno(), 1 << 16)
        if not data:
            self._selector.unregister(pipe)
            pipe.close()
            return
        *whole, begun = (self._begun.pop(rank, "") + self._decoders[rank].decode(data)).split("\n")
        for line in whole:
            self._pass(rank, line + "\n")
        if begun:
            self._begun[rank] = begun
            self._since.setdefault(rank, time.monotonic())

    def _pass(self, rank: int, text: str) -> None:
        self._since.pop(rank, None)
        (self._open.discard if text.endswith("\n") else self._open.add)(rank)
        self._write(rank, text)


def script(path: str, *arguments: str) -> list[str]:
    """The command that runs a Python script with this interpreter."""
    return [sys.executable, path, *arguments]
