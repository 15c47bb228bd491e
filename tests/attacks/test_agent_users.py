"""One user of a machine against the files, sockets and processes of others and of the platform."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest
from singularity_proxy.capsule.launcher import last_words, trim_log
from singularity_proxy.capsule.process import uid_of
from singularity_proxy.errors import Forbidden, SingularityError
from singularity_scheduler.agent import folders
from support.agent import AgentBox, sleeper, stop, until
from support.agent_kernels import client_of, run, start_kernel
from support.agent_moves import checkpoint
from support.attacks import (
    as_uid,
    attack,
    in_background,
    no_traceback,
    opened,
    uid_of_user,
)

Measured = Callable[[str], None]


@attack(
    "what-opens",
    "another user walks state, runtime, ring and store folders of a node with a kernel, a run that "
    "holds a device, and a checkpoint",
    "nothing opens: no file, and no folder can be listed",
)
async def test_what_opens(measured: Measured, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    store = tmp_path / "store"
    async with AgentBox(f"--NodeAgent.checkpoint_store={store}") as box:
        session, info = await start_kernel(box)
        client = await client_of(info)
        await run(client, "x = 1")
        worker = await box.worker("open", "need", "sleep")
        await box.event("device.need", worker)
        await box.attach(worker, 1)
        await box.logged(worker, "attached")
        await checkpoint(box, session, 0)
        client.stop_channels()
        roots = [str(box.root / "state"), str(box.runtime), str(box.shm), str(store)]
        eve = await uid_of_user(box, "eve")
        found = opened(eve, roots)
        assert found == [], "\n".join(found)
        own = opened(await uid_of_user(box, "alice"), [str(box.folder(session))])
        assert any(line.startswith("read") for line in own)  # the walk finds what there is
        files = sum(len(names) for root in roots for _, _, names in os.walk(root))
        measured(f"0 of {files} files")


@attack(
    "processes-of-others",
    "another user reads environ, memory, descriptors and maps of the agent, capsules, device "
    "proxies and relays, signals and traces them",
    "all of it is refused",
)
async def test_processes_of_others(measured: Measured) -> None:
    async with AgentBox() as box:
        session, info = await start_kernel(box)
        (await client_of(info)).stop_channels()
        worker = await box.worker("open", "need", "sleep")
        await box.event("device.need", worker)
        await box.attach(worker, 1)
        await box.logged(worker, "attached")
        pids = {box.agent_pid, *box.proxies(), *box.relays(session)}
        for one in (session, worker):
            pids |= {process.pid for process in box.everything_of(one)}
        eve = await uid_of_user(box, "eve")
        said = as_uid(
            eve,
            """
            import ctypes, os, sys
            libc = ctypes.CDLL(None, use_errno=True)
            for pid in map(int, sys.argv[1:]):
                for name in ("environ", "mem", "maps", "fd", "cwd", "root", "exe", "io"):
                    path = f"/proc/{pid}/{name}"
                    try:
                        if name == "fd":
                            os.listdir(path)
                        elif name in ("cwd", "root", "exe"):
                            os.readlink(path)
                        else:
                            with open(path, "rb") as file:
                                file.read(1)
                        print("read", path)
                    except OSError:
                        pass
                for what, act in (
                    ("signalled", lambda: os.kill(pid, 0)),
                    ("got a descriptor of", lambda: os.pidfd_open(pid) and libc.syscall(
                        438, os.pidfd_open(pid), 0, 0) >= 0 or 1 / 0),
                ):
                    try:
                        act()
                        print(what, pid)
                    except (OSError, ZeroDivisionError):
                        pass
                if libc.ptrace(16, pid, 0, 0) == 0:
                    print("traced", pid)
            """,
            *map(str, pids),
        )
        assert said == "", said
        measured(f"{len(pids)} processes, nothing opens")


@attack(
    "secrets-in-environments",
    "what the processes of a session, its relay and its device proxy have in their environment",
    "no token, no service address, no store credential, no key of the platform",
)
async def test_secrets_in_environments(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "JUPYTERHUB_API_TOKEN": "hub-secret-1",
        "CONFIGPROXY_AUTH_TOKEN": "hub-secret-2",
        "SINGULARITY_API_URL": "http://hub-secret-3",
        "AZURE_STORAGE_CONNECTION_STRING": "hub-secret-4",
        "SINGULARITY_CHECKPOINT_KEYS": "hub-secret-5",
        "STORE_SAS_TOKEN": "hub-secret-6",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    async with AgentBox(warm=1) as box:
        _, info = await start_kernel(box, env={"HOME": str(box.work)})
        (await client_of(info)).stop_channels()
        worker = await box.worker("open", "need", "sleep")
        await box.event("device.need", worker)
        await box.attach(worker, 1)
        await box.logged(worker, "attached")
        alice = await uid_of_user(box, "alice")
        seen = 0
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            text = environment_of(pid, alice)
            seen += text is not None
            found = [v for v in (text or b"").split(b"\0") if b"hub-secret" in v]
            # What a notebook server's own environment has of its user is that user's.
            kept = [v for v in found if v.split(b"=")[0] not in USERS_OWN or _is_helper(pid)]
            assert not kept, (pid, kept)
        assert seen >= 3
        measured(f"{seen} processes of the user")


def environment_of(pid: int, uid: int) -> bytes | None:
    """None when the process is not of that user."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() if uid_of(pid) == uid else None
    except OSError:
        return None


def _is_helper(pid: int) -> bool:
    """Whether it is a relay or a device proxy: those have the agent's environment, not a user's."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"singularity_kernel.relay.app" in words or b"singularity_proxy.device" in words


USERS_OWN = (b"AZURE_STORAGE_CONNECTION_STRING", b"SINGULARITY_CHECKPOINT_KEYS", b"STORE_SAS_TOKEN")
"""Variables that a notebook server may have of its user; see `stripped_environment`."""


@attack(
    "sockets-of-others",
    "another user connects to the agent's socket, a session's, its doorbell, its relay's and the "
    "proxies'",
    "no connection is made",
)
async def test_sockets_of_others(measured: Measured) -> None:
    async with AgentBox() as box:
        _, info = await start_kernel(box)
        (await client_of(info)).stop_channels()
        paths = [str(p) for root in (box.runtime,) for p in root.rglob("*") if p.is_socket()]
        assert len(paths) >= 4, paths
        eve = await uid_of_user(box, "eve")
        said = as_uid(
            eve,
            """
            import socket, sys
            for path in sys.argv[1:]:
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    try:
                        with socket.socket(socket.AF_UNIX, kind) as sock:
                            sock.settimeout(2)
                            sock.connect(path)
                            print("connected to", path)
                    except OSError:
                        pass
            """,
            *paths,
        )
        assert said == "", said
        measured(f"0 of {len(paths)} sockets")


@attack(
    "outputs-and-replies-of-others",
    "another user subscribes to all ports that a session's processes listen on, and connects there "
    "under the routing ids of its clients",
    "no cell, no output and no reply comes; the session's own client is answered",
    slow=True,
)
async def test_outputs_and_replies_of_others(measured: Measured) -> None:
    async with AgentBox() as box:
        session, info = await start_kernel(box)
        client = await client_of(info)
        pids = {*box.relays(session), *(one.pid for one in box.everything_of(session))}
        ports = sorted(
            {
                one.laddr.port
                for pid in pids
                for one in psutil.Process(pid).net_connections("tcp")
                if one.status == psutil.CONN_LISTEN
            }
        )
        eve = await uid_of_user(box, "eve")
        ids = [client.session.session, client.session.bsession.decode()]
        code = """
import json, sys, time, zmq
ports, ids = json.loads(sys.argv[1]), json.loads(sys.argv[2])
context, socks = zmq.Context(), []
for port in ports:
    for kind, names in ((zmq.SUB, [""]), (zmq.DEALER, ids)):
        for name in names:
            sock = context.socket(kind)
            sock.linger = 0
            if kind == zmq.SUB:
                sock.subscribe(b"")
            else:
                sock.routing_id = name.encode()
            sock.connect(f"tcp://127.0.0.1:{port}")
            socks.append(sock)
print("listens", flush=True)
until, got = time.monotonic() + 8, 0
while time.monotonic() < until:
    for sock in socks:
        while sock.poll(0):
            sock.recv_multipart()
            got += 1
    time.sleep(0.05)
print("got", got, flush=True)
context.destroy(linger=0)
"""
        with in_background(eve, code, json.dumps(ports), json.dumps(ids)) as process:
            assert await asyncio.to_thread(process.stdout.readline) == "listens\n"
            for number in range(20):
                shown = await run(client, f"secret = {number}; print(secret)")
                assert shown == f"{number}\n"
            assert await asyncio.to_thread(process.stdout.readline) == "got 0\n"
        client.stop_channels()
        measured(f"nothing at {len(ports)} ports while 20 cells were answered")


@attack(
    "holder-killed",
    "a user kills her session's relay three times, then pid 1 of its capsule and all its processes",
    "only that session ends or is mended; others' go on and nothing of it stays",
    slow=True,
)
async def test_holder_killed(measured: Measured) -> None:
    async with AgentBox() as box:
        other = await box.worker("open", "need", "sleep", user="bob")
        await box.event("device.need", other)
        await box.attach(other, 1)
        await box.logged(other, "attached")
        session, info = await start_kernel(box)
        client = await client_of(info)
        uid = await uid_of_user(box, "alice")
        for _ in range(3):  # from outside of the capsule, as the same user: a terminal of hers
            [relay] = box.relays(session)
            as_uid(uid, f"import os; os.kill({relay}, 9)")
            await until(lambda was=relay: box.relays(session) not in ([], [was]))  # type: ignore[misc]
            assert await run(client, "print(1)") == "1\n"
        client.stop_channels()
        holders = [p.pid for p in box.everything_of(session)]
        as_uid(
            uid,
            """
            import os, sys
            for pid in map(int, sys.argv[1:]):
                try:
                    os.kill(pid, 9)
                except OSError:
                    pass
            """,
            *map(str, holders),
        )
        await box.event("process.exited", session)
        assert box.everything_of(session) == []
        assert box.relays(session) == []
        assert (await box.session(other))["devices"] == ["cpu:0"]
        no_traceback(box)
        measured(f"3 relays and {len(holders)} processes killed; the session of bob went on")


@attack(
    "links-in-a-sessions-folder",
    "a session puts links to a file of root in the place of its log, tunnel, exit code, sockets "
    "and /tmp while the agent trims, reads, stores and ends it",
    "the file is neither read, changed, handed over nor removed",
    slow=True,
)
async def test_links_in_a_sessions_folder(measured: Measured, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret of root\n" * 10_000)
    secret.chmod(0o600)
    before = secret.stat()
    code = """
import os, sys, threading
folder, secret, hard = sys.argv[1:]
names = ("capsule.log", "tunnel.json", "kernel.json", "exit", "agent.sock", "doorbell", "tmp",
         "rendezvous.json", "k-1")
print("swaps", flush=True)
n = 0
while True:
    n += 1
    for name in names:
        path = os.path.join(folder, name)
        try:
            os.rename(path, path + ".old")
        except OSError:
            pass
        try:
            os.symlink(secret, path + ".new")
            os.rename(path + ".new", path)
            os.unlink(path)
            os.rename(path + ".old", path)
        except OSError:
            pass
"""
    async with AgentBox("--NodeAgent.log_bytes=4096") as box:
        uid = await uid_of_user(box, "alice")
        for _ in range(3):
            session, _info = await start_kernel(box)
            words = (str(box.folder(session)), str(secret), "")
            with in_background(uid, code, *words):
                shown = []
                for _ in range(10):
                    with contextlib.suppress(SingularityError):
                        log = {"session": session, "offset": 0, "limit": 4096}
                        shown.append((await box.call("session.log", **log))["text"])
                    with contextlib.suppress(SingularityError):
                        await checkpoint(box, session, 0)
                await box.end(session)
            assert "secret of root" not in "".join(shown)
            after = secret.stat()
            assert secret.read_text() == "the secret of root\n" * 10_000
            assert (after.st_uid, after.st_mode, after.st_mtime_ns, after.st_nlink) == (
                before.st_uid,
                before.st_mode,
                before.st_mtime_ns,
                before.st_nlink,
            )
        no_traceback(box)
        measured("3 sessions, 10 reads and checkpoints each")


@attack(
    "links-where-folders-are-made",
    "a link stands where a session's folders are handed to their user, between two steps of it",
    "what the link points to keeps its owner",
)
async def test_links_where_folders_are_made(measured: Measured, tmp_path: Path) -> None:
    target = tmp_path / "of-root"
    target.mkdir()
    place = tmp_path / "s"
    real = os.chown

    def swapped(path: str, uid: int, gid: int, **options: bool) -> None:
        real(path, uid, gid, **options)  # type: ignore[arg-type]
        tmp = place / "tmp"
        if os.path.isdir(tmp) and place.stat().st_uid == uid and not tmp.is_symlink():
            tmp.rename(place / "old")  # what the user's program may do from now on
            tmp.symlink_to(target)

    settings = SimpleNamespace(
        session_dir=lambda _: str(place),
        session_shm=lambda _: str(tmp_path / "shm"),
        session_tmp=lambda _: str(place / "tmp"),
    )
    record = SimpleNamespace(session="s", uid=61234, gid=61234)
    with mock.patch("os.chown", swapped):
        folders.open_session_folders(settings, record)  # type: ignore[arg-type]
    assert target.stat().st_uid == 0
    measured("kept by root")


@attack(
    "hard-links-of-logs",
    "the log of a session is a hard link to a file of somebody else, where the machine allows it",
    "it is neither cut nor shown",
)
async def test_hard_links_of_logs(measured: Measured, tmp_path: Path) -> None:
    secret, link = tmp_path / "secret", tmp_path / "log"
    secret.write_text("the secret of root\n" * 100)
    link.hardlink_to(secret)
    assert trim_log(str(link), 100, 61234) == 0
    assert trim_log(str(link), 100) == 0
    assert last_words(str(link), 61234) == ""
    assert len(secret.read_text()) == 1900
    measured("1900 bytes as before")


@attack(
    "owner-of-another-user",
    "a session asks to belong to a process of another user, or of root",
    "it is refused, in a capsule as in a terminal",
)
async def test_owner_of_another_user(measured: Measured) -> None:
    async with AgentBox(double=True) as box:
        bobs = sleeper(user=await uid_of_user(box, "bob"))
        for pid in (bobs.pid, os.getpid(), box.agent_pid, 2):
            for mode in ("capsule", "joined"):
                with pytest.raises(Forbidden, match="sessions of alice run as uid"):
                    await box.start([sys.executable, "-c", "0"], mode=mode, owner_pid=pid)
        stop(bobs)
        measured("8 of 8 refused")
