"""Process images with the real CRIU: trees dumped in the middle and brought back elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.capsule import connections
from singularity_proxy.capsule.files import record as files
from singularity_proxy.capsule.images import criu, image
from singularity_proxy.capsule.namespace import MAIN_PID, NamespaceCapsule
from singularity_proxy.capsule.tree import state_of
from singularity_proxy.errors import ImageFailed, Unavailable
from support.capsules import Place, Places, needs_criu

pytestmark = [needs_criu, pytest.mark.asyncio]

COUNT = "import time\nfor n in range(10**6): print(n, flush=True); time.sleep(.01)"

TREE = """
import hashlib, os, socket, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor

steps = int(sys.argv[1])
ghost = open("/tmp/ghost", "w+"); ghost.write("boo"); ghost.flush(); os.unlink("/tmp/ghost")
kept = open("/tmp/kept", "a+")
reader, writer = os.pipe()
child = subprocess.Popen(
    [sys.executable, "-c",
     "import hashlib, sys\\nfor line in sys.stdin: print(hashlib.sha256(line.encode()).hexdigest(), flush=True)"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
listener = socket.socket(socket.AF_UNIX); listener.bind("/tmp/ipc"); listener.listen()
near = socket.socket(socket.AF_UNIX); near.connect("/tmp/ipc"); far, _ = listener.accept()
state = hashlib.sha256(b"start")
with ThreadPoolExecutor(4) as pool:
    for step in range(steps):
        parts = list(pool.map(lambda n: hashlib.sha256(state.digest() * 2000 + bytes([n])).digest(), range(8)))
        os.write(writer, parts[0]); piped = os.read(reader, 32)
        near.sendall(parts[1]); told = far.recv(32)
        child.stdin.write(parts[2].hex() + "\\n"); child.stdin.flush(); answer = child.stdout.readline()
        kept.write("x"); kept.flush()
        state = hashlib.sha256(b"".join([piped, told, answer.encode(), *parts[3:]]))
        print(step, state.hexdigest(), flush=True)
        time.sleep(0.002)
ghost.seek(0); kept.seek(0)
print("end", ghost.read(), len(kept.read()), len(threading.enumerate()), flush=True)
child.stdin.close(); child.wait()
raise SystemExit(42)
"""  # noqa: E501


def plain(steps: int) -> list[str]:
    """The lines of `TREE` without anything done to it."""
    alone = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs x /tmp && exec "$@"', "sh"]
    done = subprocess.run(
        [*alone, os.path.realpath(sys.executable), "-c", TREE, str(steps)],  # not one below /tmp
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 42, done.stderr
    return done.stdout.splitlines()


async def dumped(capsule: NamespaceCapsule, folder: Path) -> image.Image:
    return await asyncio.to_thread(image.dump, capsule, str(folder))


async def restored(place: Place, folder: Path) -> NamespaceCapsule:
    capsule = await place.prepare()
    await asyncio.to_thread(image.restore, capsule, str(folder))
    return capsule


async def test_three_generations_of_a_busy_tree(tmp_path: Path) -> None:
    steps = 120
    async with Places() as place:
        capsule = await place.start(sys.executable, "-c", TREE, str(steps))
        for generation in range(3):
            goal = f"\n{20 + 30 * generation} "
            await place.logged(goal)
            await asyncio.to_thread(capsule.freeze)
            folder = tmp_path / f"image{generation}"
            made = await dumped(capsule, folder)
            assert made.bytes > 1 << 20
            assert capsule.frozen
            assert await capsule.end(0) == -9
            for path in [folder, *folder.iterdir()]:
                assert (path.stat().st_uid, path.stat().st_mode & 0o077) == (os.geteuid(), 0)
            before = place.log()
            capsule = await restored(place, folder)
            assert capsule.frozen
            assert place.log() == before
            assert capsule.members()[0].pid == MAIN_PID
            await asyncio.to_thread(capsule.thaw)
        assert await capsule.wait(60)
        assert capsule.watch.exit_code == 42, place.log()
        lines = place.log().splitlines()
        assert lines == await asyncio.to_thread(plain, steps)
        assert lines[-1].split()[:3] == ["end", "boo", str(steps)]


async def test_a_dump_of_a_running_tree_lets_it_go_on(tmp_path: Path) -> None:
    async with Places() as place:
        capsule = await place.start(sys.executable, "-c", TREE, "200")
        await place.logged("\n20 ")
        await dumped(capsule, tmp_path / "image")
        assert not capsule.frozen
        assert await capsule.wait(60)
        assert capsule.watch.exit_code == 42
        assert place.log().splitlines() == await asyncio.to_thread(plain, 200)


async def test_one_image_is_restored_twice_from_copies(tmp_path: Path) -> None:
    async with Places() as place:
        code = "import time, uuid\nx = uuid.uuid4().hex\nprint('on', flush=True)\ntime.sleep(1)\nopen('/tmp/out', 'a').write(x)"  # noqa: E501
        capsule = await place.python(code)
        await place.logged("on")
        await asyncio.to_thread(capsule.freeze)
        await dumped(capsule, tmp_path / "image")
        await capsule.end(0)
        written = set()
        for number in range(2):
            copy = tmp_path / f"copy{number}"
            copy.mkdir(0o700)
            for name in image.files_of(str(tmp_path / "image")):
                shutil.copy(tmp_path / "image" / name, copy / name)
            capsule = await restored(place, copy)
            await asyncio.to_thread(capsule.thaw)
            assert await capsule.wait(30)
            assert capsule.watch.exit_code == 0
            written.add((place.tmp / "out").read_text())
            (place.tmp / "out").unlink()
        assert len(written) == 1


@pytest.mark.parametrize(("ending", "code"), [("raise SystemExit(7)", 7), ("os.abort()", -6)])
async def test_the_end_after_a_restore_is_told_as_ever(
    tmp_path: Path, ending: str, code: int
) -> None:
    async with Places() as place:
        program = f"import os, time\nprint('on', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(.01)\n{ending}"  # noqa: E501
        capsule = await place.python(program)
        await place.logged("on")
        await asyncio.to_thread(capsule.freeze)
        await dumped(capsule, tmp_path / "image")
        await capsule.end(0)
        capsule = await restored(place, tmp_path / "image")
        await asyncio.to_thread(capsule.thaw)
        (place.tmp / "go").touch()
        assert await capsule.wait(30)
        assert capsule.watch.exit_code == code


async def test_what_the_user_had_stopped_stays_stopped(tmp_path: Path) -> None:
    code = """
import os, signal, subprocess, time
child = subprocess.Popen(["sleep", "600"])
os.kill(child.pid, signal.SIGSTOP)
print("on", flush=True)
time.sleep(600)
"""
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("on")
        await asyncio.to_thread(capsule.freeze)
        stopped = sorted(capsule.stopped_by_user)
        assert len(stopped) == 1
        await dumped(capsule, tmp_path / "image")
        await capsule.end(0)
        capsule = await place.prepare()
        await asyncio.to_thread(image.restore, capsule, str(tmp_path / "image"), stopped=stopped)
        await asyncio.to_thread(capsule.thaw)
        states = {m.pid: state_of(m.identity.pid) for m in capsule.members()}
        assert states.pop(stopped[0]) == "T"
        assert set(states.values()) <= {"S", "R"}


async def test_a_terminal_inside_comes_back(tmp_path: Path) -> None:
    code = """
import os, pty, subprocess, time
master, slave = pty.openpty()
child = subprocess.Popen(["cat"], stdin=slave, stdout=slave, start_new_session=True)
print("on", os.ttyname(slave), flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
os.write(master, b"hello\\n")
time.sleep(0.1)
print(os.read(master, 100), flush=True)
"""
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("on")
        if "/dev/pts/0" not in place.log():
            pytest.skip("no terminals of its own are permitted in a capsule here")
        await asyncio.to_thread(capsule.freeze)
        await dumped(capsule, tmp_path / "image")
        await capsule.end(0)
        capsule = await restored(place, tmp_path / "image")
        await asyncio.to_thread(capsule.thaw)
        (place.tmp / "go").touch()
        await place.logged("hello")


# -- what goes wrong -------------------------------------------------------------------------------


async def test_a_connection_to_outside_is_named_and_the_tree_goes_on(tmp_path: Path) -> None:
    async with Places() as place:
        path = str(place.folder / "outside")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            os.chown(path, place.uid, -1)
            capsule = await place.python(
                "import socket, sys, time\n"
                "s = socket.socket(socket.AF_UNIX)\n"
                f"s.connect({path!r})\n"
                "for n in range(10**6): print(n, flush=True); time.sleep(.01)"
            )
            connection, _ = await asyncio.to_thread(server.accept)
            await place.logged("3")
            with pytest.raises(ImageFailed, match=r"connected to .*/outside") as caught:
                await dumped(capsule, tmp_path / "image")
            assert caught.value.fields["sockets"] == [{"pid": capsule.main().pid, "path": path}]  # type: ignore[union-attr]
            assert not (tmp_path / "image").exists()
            lines = len(place.log().splitlines())
            await place.until(lambda: len(place.log().splitlines()) > lines)
            # The agent closes its end of the frozen session; then it can be saved.
            await asyncio.to_thread(capsule.freeze)
            connection.close()
        await dumped(capsule, tmp_path / "image")
        assert capsule.frozen


TALK = """
import os, socket, sys, time
near, far = sys.argv[1], int(sys.argv[2])
server = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
if os.fork() == 0:
    one, _ = server.accept()
    while data := one.recv(100):
        one.sendall(data)
    os._exit(0)
client = socket.create_connection((near, server.getsockname()[1]))
outside = socket.create_connection(("127.0.0.1", far))
outside.setblocking(False)
for n in range(10**6):
    client.sendall(b"%d" % n)
    time.sleep(0.003)  # half of them are on their way when it is stopped
    answer = int(client.recv(100))
    try:
        said = outside.recv(1)
        said = "outside ended" if not said else said
    except BlockingIOError:
        said = "outside is there"
    print(answer, said, flush=True)
"""


def own_addresses() -> list[str]:
    """The loopback addresses, and those of a network device where there is one."""
    found = ["127.0.0.1", "::1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, contextlib.suppress(OSError):
        one.connect(("192.0.2.1", 9))  # nothing is sent; 192.0.2.0/24 is for documentation
        found.append(one.getsockname()[0])
    return found


@pytest.mark.parametrize("address", own_addresses())
async def test_a_tcp_connection_inside_is_kept_and_one_to_outside_is_closed(
    address: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = server.getsockname()
        async with Places() as place:
            capsule = await place.start(sys.executable, "-c", TALK, address, str(far[1]))
            if not connections.can_keep(capsule):
                pytest.skip("this user may not take TCP connections along")
            outside, _ = await asyncio.to_thread(server.accept)
            with outside:
                for generation in range(3):
                    count = len(place.log().splitlines())
                    await place.until(lambda: len(place.log().splitlines()) > count + 20)  # noqa: B023
                    await asyncio.to_thread(capsule.freeze)
                    folder = tmp_path / str(generation)
                    await dumped(capsule, folder)
                    assert len(list(folder.glob("tcp-stream-*.img"))) == 2
                    before = place.log().splitlines()
                    await capsule.end(0)
                    capsule = await restored(place, folder)
                    capsule.thaw()
                    await place.until(lambda: len(place.log().splitlines()) > len(before) + 20)  # noqa: B023
            said = place.log().splitlines()
            assert [int(line.split()[0]) for line in said] == list(range(len(said)))
            ends = [line.partition(" ")[2] for line in said]
            assert ends[0] == "outside is there"
            assert ends[-1] == "outside ended"
            assert ends == sorted(ends, reverse=True)


async def test_a_dump_lets_connections_of_a_running_tree_be(tmp_path: Path) -> None:
    """Inside and to the outside, for a checkpoint after which it goes on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with Places() as place:
            far = str(server.getsockname()[1])
            capsule = await place.start(sys.executable, "-c", TALK, "127.0.0.1", far)
            outside, _ = await asyncio.to_thread(server.accept)
            with outside:
                for generation in range(3):
                    count = len(place.log().splitlines())
                    await dumped(capsule, tmp_path / str(generation))
                    await place.until(lambda: len(place.log().splitlines()) > count + 20)  # noqa: B023
                outside.sendall(b"x")
                await place.logged("b'x'")
            await place.logged("outside ended")
            said = place.log().splitlines()
            assert [int(line.split()[0]) for line in said] == list(range(len(said)))


FULL = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
one, _ = server.accept()
client.setblocking(False)
try:
    while True:
        client.send(bytes(1 << 16))
except BlockingIOError:
    print("full", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.01)
try:
    while data := one.recv(1 << 20):
        time.sleep(0.01)
    print("ended", flush=True)
except OSError as error:
    print(error, flush=True)
time.sleep(600)
"""


async def test_a_connection_whose_data_has_no_room_at_the_other_end_is_closed(
    tmp_path: Path,
) -> None:
    """It could only be sent to somebody who is there; the record says that it is closed."""
    async with Places() as place:
        capsule = await place.python(FULL)
        await place.logged("full")
        await asyncio.to_thread(capsule.freeze)
        folders = {"session_folder": str(place.folder), "ring_folder": str(place.shm)}
        record = await asyncio.to_thread(files.describe, capsule, **folders)
        assert len(record.lost()) == 2
        await dumped(capsule, tmp_path / "c")
        await capsule.end(0)
        capsule = await restored(place, tmp_path / "c")
        capsule.thaw()
        (place.tmp / "go").touch()
        await place.logged("ended")


async def test_a_dump_that_criu_refuses_leaves_the_tree_as_it_was(tmp_path: Path) -> None:
    """SysV shared memory is not in a namespace of its own, so CRIU refuses it."""
    code = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
id = libc.shmget(0, 4096, 0o1600)
assert libc.shmat(id, None, 0) not in (None, ctypes.c_void_p(-1).value)
libc.shmctl(id, 0, None)
for n in range(10**6): print(n, flush=True); time.sleep(.01)
"""
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("3")
        with pytest.raises(ImageFailed, match="goes on as it was") as caught:
            await dumped(capsule, tmp_path / "image")
        assert caught.value.fields["intact"]
        assert any("shm" in line.lower() for line in caught.value.fields["log"])
        assert not (tmp_path / "image").exists()
        lines = len(place.log().splitlines())
        await place.until(lambda: len(place.log().splitlines()) > lines)
        await asyncio.to_thread(capsule.freeze)
        with pytest.raises(ImageFailed):
            await dumped(capsule, tmp_path / "image")
        assert capsule.frozen  # and this one as it was: frozen


async def test_a_criu_that_hangs_is_killed(tmp_path: Path) -> None:
    async with Places() as place:
        capsule = await place.python(COUNT)
        await place.logged("3")
        for call in (image.dump, image.restore):
            inside = capsule if call is image.dump else await place.prepare()
            folder = tmp_path / call.__name__
            if call is image.restore:
                folder.mkdir()
            with pytest.raises(ImageFailed, match="given up") as caught:
                await asyncio.to_thread(
                    call,
                    inside,
                    str(folder),
                    command=["/bin/sh", "-c", "sleep 77.7; true"],
                    limit_s=0.3,
                )
            assert caught.value.fields["step"] == call.__name__
            await inside.end(0) if call is image.restore else None
        lines = len(place.log().splitlines())
        await place.until(lambda: len(place.log().splitlines()) > lines)
        await place.until(lambda: not _running("sleep 77.7"))


def _running(words: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if file.read().replace(b"\0", b" ").decode().strip() == words:
                    return True
        except OSError:
            pass
    return False


async def test_a_failed_restore_leaves_nothing(tmp_path: Path) -> None:
    async with Places() as place:
        code = "import time\nf = open('/tmp/open', 'w')\nf.write('12345'); f.flush()\nprint('on', flush=True)\ntime.sleep(600)"  # noqa: E501
        capsule = await place.python(code)
        await place.logged("on")
        await asyncio.to_thread(capsule.freeze)
        await dumped(capsule, tmp_path / "image")
        await capsule.end(0)
        (place.tmp / "open").write_text("1234567")
        capsule = await place.prepare()
        with pytest.raises(ImageFailed, match="bad size 7") as caught:
            await asyncio.to_thread(image.restore, capsule, str(tmp_path / "image"))
        assert "tmp/open" in caught.value.message
        await capsule.end(0)
        assert capsule.members() == []
        (place.tmp / "open").unlink()
        capsule = await place.prepare()
        with pytest.raises(ImageFailed, match="No such file"):
            await asyncio.to_thread(image.restore, capsule, str(tmp_path / "image"))
        await capsule.end(0)
        (place.tmp / "open").write_text("12345")
        os.chown(place.tmp / "open", place.uid, -1)
        capsule = await restored(place, tmp_path / "image")  # the image is as it was
        assert capsule.frozen


async def test_a_restore_that_is_killed_says_nothing_of_the_image(tmp_path: Path) -> None:
    async with Places() as place:
        capsule = await place.python(COUNT)
        await place.logged("3")
        await asyncio.to_thread(capsule.freeze)
        await dumped(capsule, tmp_path / "image")
        await capsule.end(0)
        said = "Error (criu/cr-restore.c:1480): 7 killed by signal 9: Killed"
        for killed in ("kill -9 $$", f"echo '{said}'; exit 1"):
            capsule = await place.prepare()
            with pytest.raises(Unavailable, match=r"itself killed; .* as it was, try again"):
                await asyncio.to_thread(
                    image.restore,
                    capsule,
                    str(tmp_path / "image"),
                    command=["/bin/sh", "-c", killed],
                )
            await capsule.end(0)
            assert capsule.members() == []
        capsule = await restored(place, tmp_path / "image")
        assert capsule.frozen


async def test_a_process_that_stops_late_after_its_restore_goes_on_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU tells each process to stop and leaves; a `thaw` before one has would pass over it."""
    run, late = image._run, []

    def stop_late(capsule: NamespaceCapsule, *words: Any, **options: Any) -> tuple[int, str]:
        answer = run(capsule, *words, **options)
        main = capsule.main()
        assert main is not None
        assert capsule.wait_frozen(10.0)
        os.kill(main.pid, signal.SIGCONT)
        late.append(threading.Timer(0.3, os.kill, (main.pid, signal.SIGSTOP)))
        late[0].start()
        return answer

    async with Places() as place:
        capsule = await place.python(COUNT)
        await place.logged("3")
        await asyncio.to_thread(capsule.freeze)
        await dumped(capsule, tmp_path / "image")
        await capsule.end(0)
        monkeypatch.setattr(image, "_run", stop_late)
        capsule = await restored(place, tmp_path / "image")
        await asyncio.to_thread(capsule.thaw)
        await asyncio.to_thread(late[0].join)  # the stop is over, however late
        before = len(place.log())
        await place.until(lambda: len(place.log()) > before + 40)


async def test_an_image_of_nothing(tmp_path: Path) -> None:
    async with Places() as place:
        capsule = await place.python("pass")
        assert await capsule.wait(30)
        with pytest.raises(Unavailable, match="have ended"):
            await dumped(capsule, tmp_path / "image")
        capsule = await place.prepare()
        (tmp_path / "empty").mkdir()
        with pytest.raises(ImageFailed, match="could not be restored"):
            await asyncio.to_thread(image.restore, capsule, str(tmp_path / "empty"))
        assert criu.probe().ok


TORCH = """
import os, threading
import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(200, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
x /= x.norm()
y, count, total = x.clone(), 0, 0
loader = iter(DataLoader(TensorDataset(torch.arange(10**6)), batch_size=10, num_workers=2))
print("on", flush=True)
while not os.path.exists("/tmp/go"):
    y = y @ x
    y /= y.norm()
    count += 1
    total += int(next(loader)[0].sum())
assert total == sum(range(10 * count)), (total, count)
print("counted", count, flush=True)
"""


@pytest.mark.full
async def test_torch_with_workers_that_load_data(tmp_path: Path) -> None:
    async with Places() as place:
        capsule = await place.python(TORCH)
        await place.logged("on")
        for generation in range(3):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(capsule.freeze)
            assert len(capsule.members()) == 3
            await dumped(capsule, tmp_path / str(generation))
            await capsule.end(0)
            capsule = await restored(place, tmp_path / str(generation))
            await asyncio.to_thread(capsule.thaw)
        (place.tmp / "go").touch()
        assert await capsule.wait(60)
        assert capsule.watch.exit_code == 0, place.log()
        assert "counted" in place.log()
