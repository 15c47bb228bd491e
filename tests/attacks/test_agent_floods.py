"""A session against the memory, time and log of the node agent, which all users share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from singularity_proxy.errors import SingularityError
from support.agent import AgentBox, until
from support.agent_kernels import start_kernel
from support.attacks import Peak, attack, in_background, no_traceback, uid_of_user

Measured = Callable[[str], None]

AGENT_MIB = 96
"""How much a session may make the agent of its node grow."""

FLOOD = """
import os, socket, sys, threading, time
path = os.environ["SINGULARITY_SOCKET"]

def connect():
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5)
    sock.connect(path)
    return sock
"""


async def flooded(box: AgentBox, code: str, measured: Measured, most: float = AGENT_MIB) -> str:
    """Run `code` in a session; the agent grows by at most `most` MiB and goes on to answer."""
    other = await box.worker("status", "sleep", user="bob")
    peak = Peak(box.agent_pid)
    session = await box.python(FLOOD + code + '\nprint("over", flush=True)\ntime.sleep(60)')
    await box.logged(session, "over")
    grown = peak.grown()
    said = box.log(session)
    assert grown < most, f"the agent grew by {grown:.0f} MiB"
    assert (await box.session(other))["alive"]
    assert await box.worker("status", "sleep", user="bob")
    measured(f"the agent grew by {max(grown, 0):.0f} MiB (at most {most:.0f})")
    no_traceback(box)
    return said


@attack(
    "unfinished-lines",
    "40 connections to the session's socket, 12 MB of a line without an end on each",
    f"the agent grows by at most {AGENT_MIB} MiB",
)
async def test_unfinished_lines(measured: Measured) -> None:
    async with AgentBox(double=True) as box:
        code = """
socks = []
for _ in range(40):
    try:
        sock = connect()
        socks.append(sock)
        for _ in range(12):
            sock.sendall(b"x" * 1_000_000)
    except OSError:
        pass
time.sleep(0.5)
"""
        await flooded(box, code, measured)


@attack(
    "unfinished-lines-of-many-sessions",
    "six sessions of one user, 60 connections each, every one with a line just short of the limit",
    "all sessions of a user together hold at most 64 MiB of the agent",
    slow=True,
)
async def test_unfinished_lines_of_many_sessions(measured: Measured) -> None:
    async with AgentBox(double=True) as box:
        peak = Peak(box.agent_pid)
        code = """
socks = []
for _ in range(60):
    try:
        sock = connect()
        socks.append(sock)
        sock.sendall(b"x" * 1_000_000)
    except OSError:
        pass
print("over", flush=True)
time.sleep(60)
"""
        sessions = [await box.python(FLOOD + code) for _ in range(6)]
        for session in sessions:
            await box.logged(session, "over")
        grown = peak.grown()
        assert grown < 160, grown
        assert await box.worker("status", "sleep", user="bob")
        measured(f"the agent grew by {grown:.0f} MiB (at most 160)")
        no_traceback(box)


@attack(
    "connections",
    "900 connections from one session, all kept open",
    "the 65th gets a sentence; other sessions are served",
)
async def test_connections(measured: Measured) -> None:
    async with AgentBox(double=True) as box:
        code = """
socks, said = [], b""
for _ in range(900):
    try:
        socks.append(connect())
    except OSError:
        break
time.sleep(1)
for sock in socks:
    sock.setblocking(False)
    try:
        said = sock.recv(4096) or said
    except BlockingIOError:
        pass
print(said.decode(), flush=True)
"""
        said = await flooded(box, code, measured)
        assert "this socket has 64 connections already" in said


@attack(
    "kinds-of-json",
    "null, lists, numbers, wrong types, 200000 brackets and half lines for every method there is",
    "each is answered with a typed error or a closed connection; the agent's log has no traceback",
)
async def test_kinds_of_json(measured: Measured) -> None:
    async with AgentBox(double=True) as box:
        code = """
import json
from singularity_scheduler.client.verbs import RUNS, VERBS
odd = [None, [], {}, "", "x" * 1000, -1, 1e308, 2**70, True, [[]], {"a": None}, "../../x"]
lines = [b"null", b"[]", b"0", b"[" * 200000, b'{"a":' * 100000, b"{", b"\\xff", b'""', b"NaN"]
for method in ("ring.open", "activity", "record", *VERBS, *RUNS, "none", None, [], 5):
    lines += [json.dumps({"id": 1, "method": method, "params": one}).encode() for one in odd]
    for name in ("virtual_device", "busy", "values", "run", "seen", "wait_s", "spec", "key",
                 "checkpoint", "device", "devices", "for_s", "tier", "priority", "torch_version"):
        lines += [json.dumps({"id": 1, "method": method, "params": {name: one}}).encode()
                  for one in odd]
answered = closed = 0
for number, line in enumerate(lines):
    sock = connect()
    sock.sendall(line + b"\\n")
    data = sock.recv(1 << 16)
    while data and not data.endswith(b"\\n"):
        data += sock.recv(1 << 16)
    if data:
        answer = json.loads(data)
        assert ("error" in answer) != ("result" in answer), data
        answered += 1
    else:
        closed += 1
    sock.close()
print(answered, "answered", closed, "closed of", len(lines), flush=True)
"""
        said = await flooded(box, code, measured)
        measured(said.splitlines()[-2])


@attack(
    "calls-that-nobody-reads",
    "60 connections that ask without end and read no answer",
    f"the agent grows by at most {AGENT_MIB} MiB and serves others",
)
async def test_calls_that_nobody_reads(measured: Measured) -> None:
    async with AgentBox(double=True) as box:
        code = """
import select
line = b'{"id": 1, "method": "status", "params": {}}\\n' * 100
socks = [connect() for _ in range(60)]
for sock in socks:
    sock.setblocking(False)
until = time.monotonic() + 5
while time.monotonic() < until:
    for sock in select.select([], socks, [], 0.1)[1]:
        try:
            sock.send(line)
        except OSError:
            socks.remove(sock)
"""
        await flooded(box, code, measured)


@attack(
    "events-and-rings-of-the-bell",
    "a session that reports activity, records values and rings the doorbell as fast as it can",
    "the service gets no more than the pace of a socket; the agent answers others",
)
async def test_events_and_rings_of_the_bell(measured: Measured) -> None:
    async with AgentBox(double=True) as box:
        code = """
from singularity_proxy.wire.rpc import SyncPeer

def report():
    with SyncPeer(path) as peer:
        n = 0
        while time.monotonic() < until:
            n += 1
            peer.call("activity", busy=bool(n % 2))
            peer.call("record", values={f"v{n % 50}": n})

def ring():
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    while time.monotonic() < until:
        try:
            bell.sendto(b"need " + os.urandom(50), os.environ["SINGULARITY_DOORBELL"])
        except OSError:
            pass

until = time.monotonic() + 6
threads = [threading.Thread(target=report) for _ in range(8)] + [threading.Thread(target=ring)]
[one.start() for one in threads]
[one.join() for one in threads]
"""
        await flooded(box, code, measured)
        events = sum(type in ("activity", "recorded") for _, type, _ in box.events)
        assert events < 1000 + 12 * 200
        measured(f"{events} events in 6 s")


@attack(
    "log",
    "a session that prints 200 MB",
    "what is kept of it is bounded by NodeAgent.log_bytes",
)
async def test_log(measured: Measured) -> None:
    async with AgentBox("--NodeAgent.log_bytes=1000000", double=True) as box:
        code = """
for _ in range(200):
    sys.stdout.write("x" * 999_999 + "\\n")
sys.stdout.flush()
"""
        session = await box.python(FLOOD + code + "\ntime.sleep(60)")
        path = box.folder(session) / "capsule.log"
        sizes: list[int] = []

        def small() -> bool:
            sizes.append(path.stat().st_size)
            return max(sizes) > 1_000_000 and sizes[-1] <= 1_000_000

        await until(small, lambda: str(sizes[-1:]), timeout=60)
        measured(f"{sizes[-1]} bytes after at most {max(sizes) // 1_000_000} MB")


@attack(
    "processes",
    "a session that starts processes until the machine refuses",
    "the end of the session ends all of them, and the agent serves others meanwhile",
)
async def test_processes(measured: Measured) -> None:
    async with AgentBox(double=True) as box:
        code = """
import resource
started = 0
for _ in range(300):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        os.setsid()
        while True:
            time.sleep(60)
    started += 1
print(started, "started", flush=True)
time.sleep(60)
"""
        session = await box.python(FLOOD + code)
        await box.logged(session, "started")
        other = await box.worker("status", "sleep", user="bob")
        await box.end(session)
        assert box.everything_of(session) == []
        assert (await box.session(other))["alive"]
        measured(box.agent_log(200) and "300 processes, all ended with their session")


@attack(
    "relay-of-the-user",
    "a session puts a program of its own in the place of its relay's control socket: bad answers, "
    "floods of events, a line without an end",
    f"the agent grows by at most {AGENT_MIB} MiB, logs no traceback and ends the session at once",
    slow=True,
)
async def test_relay_of_the_user(measured: Measured) -> None:
    async with AgentBox() as box:
        session, _ = await start_kernel(box)
        path = box.runtime / "r" / session / "control.sock"
        await until(path.exists)
        code = """
import json, os, socket, sys, threading
path = sys.argv[1]
os.unlink(path)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen(8)
print("serves", flush=True)

def serve(sock):
    odd = [None, [], {}, "x", 1, {"tunnel": []}, {"joined": True, "incarnation": "x"}]
    reader = sock.makefile("rb")
    try:
        for number in range(300):
            for name in ("wanted", "joined"):
                for one in odd:
                    event = {"method": name, "params": {"requests_again": one}}
                    sock.sendall(json.dumps(event).encode() + b"\\n")
            line = json.loads(reader.readline())
            answer = {"id": line["id"], "result": odd[number % len(odd)]}
            sock.sendall(json.dumps(answer).encode() + b"\\n")
            if number % 3 == 2:
                while True:
                    sock.sendall(b"x" * (1 << 20))
    except OSError:
        pass

while True:
    sock, _ = server.accept()
    threading.Thread(target=serve, args=(sock,), daemon=True).start()
"""
        uid = await uid_of_user(box, "alice")
        peak = Peak(box.agent_pid)
        with in_background(uid, code, str(path)) as process:
            assert await asyncio.to_thread(process.stdout.readline) == "serves\n"
            await box.kill_agent()  # the next one connects to what is there
            peak = Peak(box.agent_pid)
            for _ in range(6):
                with pytest.raises(SingularityError):
                    await box.call("session.connection", session=session)
            grown = peak.grown()
            await box.end(session)
        assert grown < AGENT_MIB
        no_traceback(box)
        measured(f"the agent grew by {grown:.0f} MiB (at most {AGENT_MIB})")
