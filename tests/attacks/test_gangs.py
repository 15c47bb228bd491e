"""Programs on several nodes: who has not a gang's key, other users at the place where ranks meet,
and a member that speaks for the ranks of others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from singularity_proxy import build
from singularity_proxy.elastic.bridge import bridge as module
from singularity_proxy.elastic.bridge import frames, identity
from singularity_proxy.elastic.bridge.bridge import Bridge, Settings
from singularity_proxy.elastic.bridge.frames import Kind
from singularity_proxy.elastic.bridge.rendezvous import LOOPBACK, Rendezvous
from singularity_proxy.elastic.ranks import free_port
from support.agent import until
from support.attacks import as_uid, attack
from support.uids import needs_own_uids

from benchmarks.gangs import Gang
from benchmarks.jobs import Job

Measured = Callable[[str], None]

STRANGER = 1_900_009_993
"""A uid that nobody has."""

ENTRY = struct.Struct("=II16sIIQQ")
"""What a bridge is told of one thing: kind, ranks of the group, its id, rank, to whom, number,
bytes that follow. See device/src/exchange/mirror.cpp."""

WORDS, CONTRIBUTION, LETTER, RECEIVED = 1, 2, 3, 4

ENDED = struct.pack("=QQIIQ", 1 << 40, 1 << 40, 0, 3, 0)
"""Words of a rank: contributed, consumed, device, state; a rank that has died far ahead."""

SUMS = """
import os, time, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
total = torch.zeros(8).cuda()
for step in range(60):
    x = torch.full((8,), float(dist.get_rank() + 1) * (step + 1)).cuda()
    dist.all_reduce(x)
    total = total * 0.5 + x
    print("step", step, flush=True)
    time.sleep(0.05)
print("said", total.tolist(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def sums() -> str:
    total = 0.0
    for step in range(60):
        total = total * 0.5 + 3.0 * (step + 1)
    return f"said {[total] * 8}"


async def speak(key: bytes, address: str, part: int, parts: int, told: list[bytes]) -> int:
    """Connect with the gang's key as `part`, and tell all of this, each over a connection of its
    own; how many were let in."""
    host, _, port = address.rpartition(":")
    hello = frames.Hello(part, parts).encode()
    greeted = 0
    for body in told:
        _, connects = identity.contexts(key)
        reader, writer = await asyncio.open_connection(host, int(port), ssl=connects)
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.write(frames.head(Kind.HELLO, hello) + hello)
            writer.write(frames.head(Kind.FILES, body) + body)
            await writer.drain()
            async with asyncio.timeout(2):
                await reader.readexactly(frames.HEADER.size)
                greeted += 1
                await reader.read()
        writer.transport.abort()
    return greeted


def lies(group: bytes, size: int) -> list[bytes]:
    """What a member may not say: of ranks of others, of ranks that cannot be, and half of it."""

    def entry(what: int, rank: int, to: int, number: int, body: bytes, length: int = -1) -> bytes:
        told = len(body) if length < 0 else length
        return ENTRY.pack(what, size, group, rank, to, number, told) + body

    other = secrets.token_bytes(16)
    return [
        entry(WORDS, 0, 0, 0, ENDED),  # rank 0 runs in part 0, and has not died
        entry(CONTRIBUTION, 0, 0, 1 << 20, b"x" * 64),
        entry(LETTER, 0, 1, 1, b"x" * 64),
        entry(RECEIVED, 1, 0, 1 << 40, b""),
        entry(WORDS, size, 0, 0, ENDED),
        entry(WORDS, 1, 1 << 31, 0, ENDED),
        entry(WORDS, 1, 0, 0, ENDED[:7]),
        entry(99, 1, 0, 0, b""),
        entry(CONTRIBUTION, 1, 0, 1, b"x", 1 << 60),
        ENTRY.pack(WORDS, 1 << 31, group, 0, 0, 0, 0),
        ENTRY.pack(WORDS, 0, other, 0, 0, 0, 0),
        b"half",
        *(os.urandom(500) for _ in range(20)),
    ]


@attack(
    "member-for-other-ranks",
    "who has the key of a gang takes the place of one part, and tells another one of ranks that "
    "run there, of ranks that cannot be, and half messages",
    "a part speaks for its own ranks only: the bridge lives, and the sums are those of the ranks",
    root=False,
    slow=True,
)
def test_member_for_other_ranks(measured: Measured, tmp_path: Path) -> None:
    file = tmp_path / "sums.py"
    file.write_text(SUMS)
    with Gang(2, devices=1) as parts:
        jobs = [Job(part, "", ranks=1, file=file) for part in parts]
        jobs[0].wait_for_step(3)
        first = parts[0]
        [name] = [path.name for path in first.shm.glob("group-*") if len(path.name) == 38]
        told = lies(bytes.fromhex(name.removeprefix("group-")), 2)
        key = bytes.fromhex(first.key)
        greeted = asyncio.run(speak(key, first.address, 1, 2, told))
        asyncio.run(speak(key, first.address, 0, 2, told[:1]))
        asyncio.run(speak(key, first.address, 5, 2, told[:1]))
        said = []
        for job in jobs:
            job.wait(120)
            assert job.failure is None, job.printed()
            job.stop()
            said += [line.strip() for _, line in job.lines if line.startswith("said")]
        assert said == [sums()] * 2
        assert first.bridge is not None
        assert first.bridge.poll() is None
        assert "Traceback" not in first.said()
        measured(f"{greeted} of {len(told)} lies were told; the sums are right")


@attack(
    "bridge-without-a-word",
    "300 connections to a bridge that say nothing, send garbage, or shake hands without the key, "
    "and to its inner port without the token",
    "each is closed when its time is over; a part that has the key is let in meanwhile",
    root=False,
)
def test_bridge_without_a_word(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GREET_SECONDS", 3.0)
    key = secrets.token_bytes(32)
    loopback = "127.0.0.1"
    unknown = ssl.create_default_context()
    unknown.check_hostname, unknown.verify_mode = False, ssl.CERT_NONE

    async def end(reader: asyncio.StreamReader) -> bytes:
        """What came until the other side closed."""
        with contextlib.suppress(OSError, ssl.SSLError):
            async with asyncio.timeout(30):
                return await reader.read()
        return b""

    async def go() -> None:
        for name in ("0", "1"):
            (tmp_path / name).mkdir()
        peers, inner = tmp_path / "peers.json", tmp_path / "rendezvous.json"
        settings = [
            Settings(
                *(tmp_path / str(n), n, 2, key, loopback),
                peers=peers,
                rendezvous=inner if n == 0 else None,
            )
            for n in range(2)
        ]
        mirrors = [build.load().Mirror(str(one.folder), one.part) for one in settings]
        async with Bridge(settings[0], mirrors[0]) as first:
            local = first._local.sockets[0].getsockname()[1]
            readers, writers = [], []
            for number in range(300):
                port = local if number % 3 == 2 else first.port
                reader, writer = await asyncio.open_connection(loopback, port)
                readers.append(reader)
                writers.append(writer)
                if number % 3 == 1:
                    writer.write(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(100))
            keyless = 0
            for _ in range(20):
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection(
                        loopback, first.port, ssl=unknown
                    )
                    writers.append(writer)
                    keyless += len(await end(reader))
            assert keyless == 0
            peers.write_text(f'{{"0": "{loopback}:{first.port}"}}')
            async with Bridge(settings[1], mirrors[1]):
                await until(lambda: 1 in first._links, timeout=20.0)
                said = await asyncio.gather(*map(end, readers))
            # A TLS alert at most; no greeting of the bridge and nothing of its rendezvous.
            assert max(map(len, said)) <= 16, max(said, key=len)
            for writer in writers:
                writer.transport.abort()

    asyncio.run(go())
    measured("300 closed, none greeted; the part with the key was let in")


@attack(
    "rendezvous-of-ranks",
    "another user connects to the port at which ranks of a part meet, and waits for an answer",
    "it is disconnected and nothing is said to the other parts; the ranks' own user is let in",
)
@needs_own_uids
def test_rendezvous_of_ranks(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
    import socket, sys
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5) as one:
        one.settimeout(10)
        try:
            one.sendall(b"x" * 100)
            print("got", one.recv(100))
        except ConnectionError:
            print("got b''")
    """

    async def go() -> None:
        port = free_port()
        meeting = Rendezvous(1, port, tmp_path / "nowhere")
        said: list[int] = []
        monkeypatch.setattr(meeting, "_say", lambda part, what, number, data=b"": said.append(what))
        await meeting.start()
        for _ in range(5):
            got = await asyncio.to_thread(as_uid, STRANGER, code, str(port))
            assert got == "got b''\n"
        assert said == []
        # Who cannot be looked up is nobody's rank.
        with monkeypatch.context() as patch:
            patch.setattr(
                "singularity_proxy.elastic.bridge.rendezvous.uid_of_peer",
                lambda _: (_ for _ in ()).throw(OSError("not connected")),
            )
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
            assert said == []
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        await until(lambda: said == [1])
        writer.close()
        await meeting.stop()

    asyncio.run(go())
    measured("6 of 6 refused")
