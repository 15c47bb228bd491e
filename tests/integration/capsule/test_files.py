"""Files of a session: what travels, what is set back, what stops a restore."""

from __future__ import annotations

import _ctypes
import asyncio
import shutil
import socket
from pathlib import Path

import pytest
from singularity_proxy.capsule.files import reconcile, scratch
from singularity_proxy.capsule.images import image
from singularity_proxy.errors import ImageFailed, OpenFilesChanged, Unsupported
from support.capsule_returns import back, bring_back, saved
from support.capsules import LAUNCHER, Places, needs_criu

pytestmark = [needs_criu, pytest.mark.asyncio]

CSV = """
import time
with open("results.csv", "a") as out:
    for n in range(10**6):
        out.write(f"{n},{n * n}\\n"); out.flush()
        time.sleep(0.005)
"""


async def test_a_growing_file_in_home_is_set_back(tmp_path: Path) -> None:
    async with Places() as place:
        csv = place.home / "results.csv"
        capsule = await place.python(CSV)
        await place.until(lambda: csv.exists() and csv.stat().st_size > 200)
        record = await saved(place, capsule, tmp_path / "c")
        [known] = [one for one in record.files if one.use == "write" and one.place == "outside"]
        assert (known.path, known.size) == (str(csv), csv.stat().st_size)
        assert known.digest is not None
        at_checkpoint = csv.read_text()
        await asyncio.to_thread(capsule.thaw)
        await place.until(lambda: csv.stat().st_size > known.size + 200)
        await capsule.end(0)  # the node is gone
        later = csv.read_text()
        done = await asyncio.to_thread(reconcile.reconcile, record, **back(place), label="after-1")
        [kept] = done.told
        assert kept.copy == str(place.home / "results.csv.after-1")
        copy = place.home / "results.csv.after-1"
        assert copy.read_text() == later
        assert copy.stat().st_uid == place.uid
        assert csv.read_text() == at_checkpoint
        assert f"had grown by {len(later) - len(at_checkpoint)} bytes" in kept.sentence()
        capsule = await bring_back(place, tmp_path / "c", done.plan)
        await place.until(lambda: csv.stat().st_size > len(later))
        await capsule.end(0)
        lines = csv.read_text().splitlines()
        assert [int(line.split(",")[0]) for line in lines[:-1]] == list(range(len(lines) - 1))


async def test_a_missing_library_and_a_busy_port_are_named(tmp_path: Path) -> None:
    async with Places() as place:
        library = place.home / "libown.so"
        shutil.copy(_ctypes.__file__, library)
        code = f"""
import ctypes, socket, time
ctypes.CDLL({str(library)!r})
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
client = socket.create_connection(server.getsockname())  # which nobody has accepted
print(server.getsockname()[1], flush=True)
time.sleep(600)
"""
        capsule = await place.python(code)
        await place.logged("\n")
        port = int(place.log())
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        assert (
            record.lost() == [f"the network connection to 127.0.0.1:{port} was closed"]
            or len(record.lost()) == 2
        )
        away = library.rename(place.home / "away")
        with pytest.raises(OpenFilesChanged, match=r"libown.so \(missing\)"):
            await asyncio.to_thread(reconcile.reconcile, record, **back(place), label="x")
        away.rename(library)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            with pytest.raises(ImageFailed, match=f"listens on 127.0.0.1:{port}"):
                await asyncio.to_thread(reconcile.reconcile, record, **back(place), label="x")
        await asyncio.to_thread(reconcile.reconcile, record, **back(place), label="x")
        capsule = await place.prepare()
        await asyncio.to_thread(image.restore, capsule, str(tmp_path / "c/image"))


async def test_scratch_files_travel_to_another_place(tmp_path: Path) -> None:
    """Another node: other folders there, which the processes find where theirs were."""
    code = """
import os, time
os.makedirs("/tmp/deep/er"); os.symlink("nowhere", "/tmp/deep/link"); os.mkfifo("/tmp/pipe")
open("/tmp/deep/er/x", "w").write("deep"); os.chmod("/tmp/deep/er/x", 0o640)
os.utime("/tmp/deep/er/x", ns=(10**18, 10**18 + 123456789))
os.utime("/tmp/deep", ns=(5, 10**18 + 1))
os.link("/tmp/deep/er/x", "/tmp/hard")
shared = open("/dev/shm/shared", "w+"); shared.write("memory"); shared.flush()
note = open("/tmp/note", "a+"); note.write("before "); note.flush()
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
note.write("after"); note.flush(); note.seek(0); shared.seek(0)
info = os.stat("/tmp/deep/er/x")
print(note.read(), shared.read(), os.readlink("/tmp/deep/link"), info.st_mtime_ns,
      oct(info.st_mode), info.st_nlink, os.stat("/tmp/deep").st_mtime_ns,
      sorted(os.listdir("/tmp/deep")), flush=True)
"""
    async with Places() as here, Places() as there:
        there.uid = here.uid
        capsule = await here.python(code)
        await here.logged("on")
        record = await saved(here, capsule, tmp_path / "c")
        assert {one.path for one in record.files if one.place == "scratch"} >= {
            "/tmp/note",
            "/dev/shm/shared",
            str(here.folder / "capsule.log"),
        }
        await capsule.end(0)
        for folder in (here.folder, here.shm):
            shutil.rmtree(folder)
        assert LAUNCHER is not None
        spec = there.spec(
            "unused",
            cwd=str(here.home),
            keep=(),
            moved={str(here.folder): str(there.folder), str(here.shm): str(there.shm)},
        )
        capsule = await LAUNCHER.prepare(spec)
        here.capsules.append(capsule)
        roots = [str(here.folder), "/dev/shm"]
        await asyncio.to_thread(scratch.unpack, capsule, str(tmp_path / "c/scratch"), roots)
        await asyncio.to_thread(image.restore, capsule, str(tmp_path / "c/image"))
        await asyncio.to_thread(capsule.thaw)
        (there.tmp / "go").touch()
        assert await capsule.wait(30)
        assert there.log().splitlines() == [
            "on",
            "before after memory nowhere 1000000000123456789 0o100640 2 1000000000000000001 "
            "['er', 'link']",
        ]
        assert (there.tmp / "note").read_text() == "before after"
        with pytest.raises(Unsupported, match="neither below /tmp"):
            await LAUNCHER.prepare(there.spec("unused", moved={"/run/x": str(there.folder)}))
