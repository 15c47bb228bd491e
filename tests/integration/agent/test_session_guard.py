"""The doorbell of a session takes a listening socket from a worker and puts a filter on it."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from singularity_proxy.wire.limits import USER, Held
from singularity_scheduler.agent.sessions.socket import MAX_GUARDS, SessionSocket
from support.agent import until

pytestmark = [pytest.mark.root, pytest.mark.asyncio]


@pytest_asyncio.fixture
async def doorbell(short_dir: Path) -> AsyncIterator[tuple[str, list[str]]]:
    """Of a running session: its path, and the rings that were rung for."""
    needs: list[str] = []
    private = short_dir / "private"
    private.mkdir()
    found = SessionSocket(
        str(short_dir),
        str(private),
        uid=os.getuid(),
        gid=os.getgid(),
        handlers={},
        on_need=needs.append,
        within=Held(USER),
    )
    await found.start()
    yield found.doorbell_path, needs
    await found.close()


def send(path: str, word: str, descriptors: Sequence[int]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.connect(path)
        socket.send_fds(bell, [word.encode()], descriptors)


async def answer(path: str, word: str, descriptor: int) -> str:
    """The answer: "y", or "" when there was none: the other end was closed."""
    mine, its = socket.socketpair()
    with mine, its:
        send(path, word, [descriptor, its.fileno()])
        its.close()
        mine.setblocking(False)
        said: list[bytes] = []

        def came() -> bool:
            try:
                said.append(mine.recv(8))
            except BlockingIOError:
                return False
            return True

        await until(came)
        return said[0].decode()


async def test_a_listening_socket_gets_a_filter(doorbell: tuple[str, list[str]]) -> None:
    path, _ = doorbell
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert await answer(path, "guard", listener.fileno()) == "y"
        with socket.create_connection(listener.getsockname()) as near:
            far, _ = listener.accept()
            with far:
                near.sendall(b"word")
                far.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    far.recv(4)
                far.setsockopt(socket.SOL_SOCKET, 27, 0)  # SO_DETACH_FILTER
                far.settimeout(10)
                assert far.recv(4) == b"word"


async def test_anything_else_gets_no_answer_and_is_closed(
    doorbell: tuple[str, list[str]], tmp_path: Path
) -> None:
    path, needs = doorbell
    before = len(os.listdir("/proc/self/fd"))
    ends = os.pipe()
    with socket.socket(socket.AF_UNIX) as other, socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(2 * MAX_GUARDS):
            assert await answer(path, "guard", ends[0]) == ""
            assert await answer(path, "guard", other.fileno()) == ""
            assert await answer(path, "need", listener.fileno()) == ""
        send(path, "guard", [listener.fileno()] * 20)
    send(path, "need r0", [])
    await until(lambda: needs == ["r0"])
    for end in ends:
        os.close(end)
    await until(lambda: len(os.listdir("/proc/self/fd")) == before)
