"""Other users of the machine and the store at which ranks meet: they get no answer, its own do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.attacks import attack
from support.uids import needs_own_uids

OTHER = 1_900_009_991
"""A uid that nobody has."""

CLIENT = """
import sys, torch.distributed as dist
from datetime import timedelta
limit = timedelta(seconds=float(sys.argv[3]))
store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), None, False, limit)
store.set("from", sys.argv[4])
print(store.get("own").decode())
"""

SERVER = """
import sys, torch.distributed as dist
from datetime import timedelta
options = {options}
store = dist.TCPStore("localhost", {port}, None, True, timedelta(seconds=60), **options)
store.set("own", "secret")
print(store.port, flush=True)
print(store.get("from").decode(), flush=True)
sys.stdin.read()
"""


def session(**more: str) -> dict[str, str]:
    """The environment of a process of a session, as far as torch's stores look at it."""
    found = {**os.environ, "SINGULARITY_SESSION": "0" * 12, "CUDA_VISIBLE_DEVICES": ""}
    return {**found, "USE_LIBUV": "0", **more}


@contextmanager
def store(
    port: int = 0, options: str = "{}", **env: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A store in a process of a session; (process, port)."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER.format(options=options, port=port)],
        env=session(**env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, int(line)
    finally:
        process.kill()
        process.communicate()


def ask(
    host: str, port: int, seconds: float, uid: int, **env: str
) -> subprocess.CompletedProcess[str]:
    """What a client of that uid gets from the store."""
    return subprocess.run(
        [sys.executable, "-c", CLIENT, host, str(port), str(seconds), str(uid)],
        env={**os.environ, **env},
        user=uid,
        group=uid,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@attack(
    "store-of-ranks",
    "another user reads and writes keys of the store at which ranks of a program meet, on libuv "
    "and not, at its own socket or a given one",
    "no byte of it is read; the ranks' own user is served",
)
@needs_own_uids
@pytest.mark.parametrize(
    ("options", "libuv"),
    [
        ("{}", "0"),
        ("{}", "1"),
        ("{'multi_tenant': True}", "0"),
        ("{'master_listen_fd': own()}", "0"),
    ],
)
def test_a_store_serves_its_own_user_alone(options: str, libuv: str) -> None:
    port = 0
    if "own()" in options:
        port = free_port()
        listening = f"__import__('socket').create_server(('', {port})).detach()"
        options = options.replace("own()", listening)
    with store(port, options, USE_LIBUV=libuv) as (process, port):
        for host in ("127.0.0.1", "localhost"):
            other = ask(host, port, 2, OTHER)
            assert other.returncode != 0, other.stdout
            assert "secret" not in other.stdout
        own = ask("localhost", port, 30, os.geteuid())
        assert (own.returncode, own.stdout) == (0, "secret\n"), own.stderr
        assert process.stdout is not None
        assert process.stdout.readline() == f"{os.geteuid()}\n"
        process.kill()
        said = process.communicate()[1]
    sentence = (
        f"a connection of uid {OTHER} (::ffff:127.0.0.1) to the store at port {port} was refused"
    )
    assert sentence.replace("::ffff:", "") in said.replace("::ffff:", "")


@needs_own_uids
def test_a_store_that_its_user_opens_serves_everybody() -> None:
    with store(SINGULARITY_OPEN_STORES="1") as (_, port):
        other = ask("127.0.0.1", port, 30, OTHER)
        assert (other.returncode, other.stdout) == (0, "secret\n"), other.stderr


def test_torch_says_that_a_port_is_taken_and_stores_of_one_process_share_theirs() -> None:
    code = """
    import torch.distributed as dist, socket
    with socket.create_server(("", 0)) as taken:
        try:
            dist.TCPStore("localhost", taken.getsockname()[1], None, True)
        except RuntimeError as error:
            print("EADDRINUSE" in str(error) or "in use" in str(error))
    one = dist.TCPStore("localhost", 0, None, True, multi_tenant=True)
    two = dist.TCPStore("localhost", one.port, None, True, multi_tenant=True)
    one.set("key", "shared")
    print(two.get("key").decode())
    port = one.port
    del one, two
    three = dist.TCPStore("localhost", port, None, True)
    print(three.port == port, three.num_keys())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=session(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == ["True", "shared", "True", "0"], done.stderr


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
