"""Everything that a running platform listens on stands in a table, and another user of the machine
gets nothing of it: no output, no code, no reply, no key of a store, no page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq
from singularity_kernel.batch.submitting.submission import passed_on
from singularity_spawner.platform.processes import of_run
from support import stranger_at_sockets
from support.attacks import attack
from support.batch_runs import write_notebook
from support.hub_notebooks import Page
from support.hub_platform import running_platform
from support.listeners import TABLE, Row, Socket, find_listening, find_row
from support.uids import needs_own_uids

pytestmark = [needs_own_uids, pytest.mark.timeout(400)]

STRANGER = 1_900_009_992
"""A uid that nobody has."""

TRY_S = 2.0
"""So long one attempt listens for an answer."""

HARD_S = 60.0
"""A process with attempts at one socket that is not over then is killed."""

AT_ONCE = 6

Json = dict[str, Any]

SECRET = "the-answer-is-42"

MEET = """
import time, torch, torch.distributed as dist
dist.init_process_group("nccl")
host = dist.new_group(backend="gloo")
one = torch.ones(1)
dist.all_reduce(one, group=host)
print("met", int(one), flush=True)
while True:
    time.sleep(0.2)
"""

PRINTS = f"""
import time
while True:
    print("{SECRET}", flush=True)
    time.sleep(0.05)
"""


async def try_socket(
    names: Sequence[str], target: Socket, identity: str, paths: Sequence[str]
) -> Json:
    """What a process of another uid gets by each attempt: "refused", "got" or "hung"."""
    words = (",".join(names), target.kind, target.address, identity, str(TRY_S), *paths)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(stranger_at_sockets.__file__), *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        env={"PATH": os.environ["PATH"], "HOME": "/"},
        cwd="/",
    )
    try:
        out, said = await asyncio.wait_for(process.communicate(), HARD_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return {name: {"hung": True} for name in names}
    assert process.returncode == 0, said.decode()
    found: Json = json.loads(out)
    return found


def choose_attempts(row: Row) -> list[str]:
    """What is tried at a socket of this row."""
    if row.kind != "tcp":
        return ["connect"]
    return [name for name in stranger_at_sockets.ATTEMPTS if name != "page" or row.paths]


async def try_all(sockets: Sequence[Socket], identity: str) -> dict[tuple[Socket, str], Json]:
    """All attempts at all of them, some at a time."""
    turns = asyncio.Semaphore(AT_ONCE)
    found: dict[tuple[Socket, str], Json] = {}

    async def one(target: Socket, row: Row) -> None:
        async with turns:
            got = await try_socket(choose_attempts(row), target, identity, row.paths)
        found.update({(target, name): answer for name, answer in got.items()})

    rows = [(target, find_row(target)) for target in sockets]
    await asyncio.gather(*(one(target, row) for target, row in rows if row is not None))
    return found


def check_page(text: str) -> None:
    """Nothing but refusals, and the page where one logs in."""
    for line in text.splitlines():
        path, answer = json.loads(line)
        status = answer.split(" ")[1] if answer.startswith("HTTP/") else ""
        if path == "/hub/login" and status == "200":
            assert 'name="password"' in answer, (path, answer)
        elif path == "/services/singularity/" and status == "200":
            body = answer.partition("\r\n\r\n")[2]
            assert json.loads(body) == {"name": "jupyter-singularity", "api": "api/v1"}
        elif status == "302":
            head = answer.partition("\r\n\r\n")[0].lower()
            place = head.partition("location: ")[2].partition("\r\n")[0]
            assert "login" in place or "oauth" in place or place.startswith("/hub/"), (path, place)
        else:
            assert status in ("401", "403", "404"), (path, answer[:2000])


def check_attempt(row: Row, name: str, found: Json) -> None:
    """What somebody else gets of a socket is no more than its row says."""
    assert "hung" not in found, found
    assert SECRET not in json.dumps(found), found
    if row.by == "folder":
        assert found.get("refused") in ("EACCES", "EPERM"), found
    elif name == "page":
        check_page(found["got"])
    elif name != "connect" and row.by != "nothing":
        assert not found.get("got"), found
    else:
        greeting = found.get("got", "")
        assert len(greeting) <= 64, found  # of ZeroMQ; everybody else says nothing first


@attack(
    "other-users-sockets",
    "each socket that a platform with notebooks, ranks, a batch run and a gang listens on: "
    "connect, subscribe, take a client's name, unsigned and endless frames, torch's store, pages "
    "without a token",
    "all of them are known; no output, code, reply, key of a store or page; the notebook goes on",
    slow=True,
)
async def test_all_that_listens_is_known_and_another_user_gets_nothing_of_it(
    measured: Callable[[str], None],
) -> None:
    async with running_platform(devices=3, nodes=2) as platform:
        place = (
            await platform.start_server("alice", {"devices": 2}),
            await platform.user_token("alice"),
        )
        home = platform.folder.homes / "alice"
        service = platform.service(place[1])
        page = await Page("secret.ipynb").open(*place)
        ranks = await Page("ranks.ipynb").open(*place)
        try:
            met = await ranks.execute(f"%%singularity run --ranks 2\n{MEET}")
            for name, text in (("train.py", MEET), ("run.ipynb", "")):
                (home / name).write_text(text)
                os.chown(home / name, home.stat().st_uid, home.stat().st_gid)
            write_notebook(home / "run.ipynb", PRINTS)
            shared = {
                "folder": str(home),
                "python": sys.executable,
                "variables": passed_on({**os.environ, "HOME": str(home)}),
            }
            batch = {"notebook": str(home / "run.ipynb"), "output": str(home / "out.ipynb")}
            await service.submit(run={**batch, **shared}, name="batch", devices=1)
            gang = {"command": f"exec {sys.executable} -u train.py", "ranked": True}
            made = await service.submit(run={**gang, **shared}, name="gang", devices=2, nodes=2)
            cell = await page.execute(PRINTS)
            await page.until(lambda: SECRET in page.text(cell))
            await ranks.until(lambda: ranks.text(met).count("met 2") == 2, 120)
            async with asyncio.timeout(120):
                for part in made["part"]["sessions"]:
                    async with contextlib.aclosing(service.logs(part, follow=True)) as log:
                        said = ""
                        while "met 2" not in said:
                            said += await anext(log)
                while SECRET not in (home / "out.ipynb").read_text():
                    await asyncio.sleep(0.2)
            sockets = find_listening(p.pid for p in of_run(platform.settings.instance))
            unknown = [s for s in sockets if find_row(s) is None]
            assert unknown == [], "\n".join(["nobody says who may use this:", *map(str, unknown)])
            seen = {row.name for s in sockets if (row := find_row(s)) is not None}
            assert {row.name for row in TABLE} - seen == set(), "these were not there to be tried"
            # The name of the server's own connection to the kernel, as its messages show it.
            identity = next(m["header"]["session"] for m in page.seen if m.get("header"))
            tried = await try_all(sockets, identity)
            for (target, name), found in tried.items():
                row = find_row(target)
                assert row is not None
                try:
                    check_attempt(row, name, found)
                except AssertionError as error:
                    error.add_note(f"{name} at {row.name}, {target}")
                    raise
            measured(f"{len(tried)} attempts at {len(sockets)} sockets")
            before = page.text(cell).count(SECRET)
            await page.until(lambda: page.text(cell).count(SECRET) > before)
            await page.server.rest("POST", f"api/kernels/{page.kernel}/interrupt", {})
            await page.until(lambda: page.replies(cell) == ["error"])
            assert await page.run("print(6 * 7)") == "42"
        finally:
            await page.leave()
            await ranks.leave()


def test_an_attempt_gets_what_nothing_keeps(tmp_path: Path) -> None:
    """The attempts are real ones: at sockets that are open to everybody each of them finds what is
    there."""
    context = zmq.Context()
    publisher, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
    ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (publisher, router)]
    plain = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0{tmp_path.name}")
    abstract.listen()
    program = (
        "import sys, torch.distributed as d; s = d.TCPStore('0.0.0.0', 0, None, True); "
        "s.set('a', 'b'); print(s.port, flush=True); sys.stdin.read()"
    )
    store = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    over = threading.Event()

    def talk() -> None:
        publisher.rcvtimeo = router.rcvtimeo = 100
        while not over.is_set():
            with contextlib.suppress(zmq.Again):
                publisher.recv()
            publisher.send(SECRET.encode())
            with contextlib.suppress(zmq.Again):
                router.send_multipart([router.recv_multipart()[0], SECRET.encode()])

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = plain.accept()
                with one:
                    one.recv(4096)
                    one.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + SECRET.encode())

    threads = [threading.Thread(target=talk), threading.Thread(target=answer)]
    for thread in threads:
        thread.start()
    try:
        assert store.stdout is not None
        places = {
            "subscribe": ("tcp", f"127.0.0.1:{ports[0]}"),
            "take_name": ("tcp", f"127.0.0.1:{ports[1]}"),
            "store": ("tcp", f"0.0.0.0:{int(store.stdout.readline())}"),
            "page": ("tcp", f"127.0.0.1:{plain.getsockname()[1]}"),
            "connect": ("abstract", f"@{tmp_path.name}"),
        }
        got = {}
        for name, (kind, address) in places.items():
            target = Socket(kind, address, 0, "", 0)
            got |= asyncio.run(try_socket([name], target, "eve", ["/"]))
        assert got["connect"] == {"got": ""}
        assert got["store"]["got"]
        for name in ("subscribe", "take_name", "page"):
            assert SECRET in got[name]["got"], (name, got)
    finally:
        over.set()
        plain.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for one in (plain, abstract):
            one.close()
        context.destroy(linger=0)
        store.communicate()
