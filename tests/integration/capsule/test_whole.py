"""A process image holds everything of its capsule, or none is taken."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from singularity_proxy.capsule.files import reconcile
from singularity_proxy.capsule.images import image
from singularity_proxy.capsule.namespace import MAIN_PID
from singularity_proxy.errors import ImageFailed
from support.capsule_returns import back, bring_back, saved
from support.capsules import Places, needs_criu

pytestmark = [needs_criu, pytest.mark.asyncio]

DAEMONS = """
import os, subprocess, sys, time
os.system("sleep 4243.1 >/dev/null 2>&1 &")
subprocess.run("nohup sleep 4243.2 >/dev/null 2>&1 &", shell=True)
subprocess.run(["setsid", "-f", "sleep", "4243.3"])
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execvp("sleep", ["sleep", "4243.4"])
os.wait()
child = subprocess.Popen(["sleep", "4243.5"])
print("on", flush=True)
for _ in range(5):
    os.wait()
print("reaped", flush=True)
time.sleep(600)
"""


def programs(pids: list[int]) -> list[str]:
    """What the processes run, as `ps` would show it."""
    found = []
    for pid in pids:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            found.append(file.read().replace(b"\0", b" ").decode().strip())
    return sorted(found)


async def test_processes_that_left_their_parents_come_back(tmp_path: Path) -> None:
    """Started with `&`, nohup, setsid or a double fork."""
    async with Places() as place:
        capsule = await place.python(DAEMONS)
        await place.logged("on")
        expected = [f"sleep 4243.{n}" for n in range(1, 6)]
        await place.until(
            lambda: (
                programs([m.identity.pid for m in capsule.members() if m.pid != MAIN_PID])
                == expected
            )
        )
        before = {m.pid for m in capsule.members()}
        for generation in range(2):
            await asyncio.to_thread(capsule.freeze)
            folder = str(tmp_path / str(generation))
            await asyncio.to_thread(image.dump, capsule, folder)
            await capsule.end(0)
            capsule = await place.prepare()
            await asyncio.to_thread(image.restore, capsule, folder)
            assert capsule.frozen
            await asyncio.to_thread(capsule.thaw)
            assert {m.pid for m in capsule.members()} == before
        members = [m.identity.pid for m in capsule.members() if m.pid != MAIN_PID]
        assert programs(members) == expected
        for pid in members:
            os.kill(pid, 15)
        await place.logged("reaped")


SEMAPHORE = """
import _multiprocessing, os, time
lock = _multiprocessing.SemLock(1, 1, 1, "/named-sem", False)
lock.acquire()
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
other = _multiprocessing.SemLock._rebuild(lock.handle, 1, 1, "/named-sem")
print("taken", other.acquire(False), flush=True)
lock.release()
print("released", other.acquire(False), flush=True)
time.sleep(600)
"""

LINKS = """
import os, time
folder = os.environ["IN"]
file = open(f"{folder}/a.tmp", "w+")
file.write("first "); file.flush()
os.link(f"{folder}/a.tmp", f"{folder}/b"); os.unlink(f"{folder}/a.tmp")
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
file.write("second"); file.flush()
print(open(f"{folder}/b").read(), flush=True)
time.sleep(600)
"""


async def test_a_named_semaphore_comes_back(tmp_path: Path) -> None:
    """As joblib and scikit-learn with `n_jobs` have them."""
    async with Places() as place:
        capsule = await place.python(SEMAPHORE)
        await place.logged("on")
        for generation in range(2):
            folder = tmp_path / str(generation)
            record = await saved(place, capsule, folder)
            await capsule.end(0)
            plan = await asyncio.to_thread(reconcile.reconcile, record, **back(place), label="x")
            capsule = await bring_back(place, folder, plan.plan)
        (place.tmp / "go").touch()
        await place.logged("released")
        assert place.log().split() == ["on", "taken", "False", "released", "True"]


@pytest.mark.parametrize("where", ["tmp", "home"])
async def test_a_file_whose_first_name_was_removed_comes_back(where: str, tmp_path: Path) -> None:
    async with Places() as place:
        inside = {"tmp": "/tmp", "home": str(place.home)}[where]
        env = {**place.spec("x").env, "IN": inside}
        capsule = await place.python(LINKS, env=env)
        await place.logged("on")
        for generation in range(2):
            folder = tmp_path / str(generation)
            record = await saved(place, capsule, folder)
            await capsule.end(0)
            plan = await asyncio.to_thread(reconcile.reconcile, record, **back(place), label="x")
            assert plan.sentences() == []
            capsule = await bring_back(place, folder, plan.plan)
        (place.tmp / "go").touch()
        await place.logged("second")
        assert "first second" in place.log()
        names = os.listdir({"tmp": place.tmp, "home": place.home}[where])
        assert not [name for name in names if "link_remap" in name or name == "a.tmp"]


async def test_a_file_whose_other_name_is_not_found_is_refused_by_name(tmp_path: Path) -> None:
    code = """
import os, time
file = open(os.environ["HOME"] + "/a.tmp", "w"); file.write("first "); file.flush()
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
file.write("second"); file.close()
print("written", flush=True)
time.sleep(600)
"""
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("on")
        os.link(place.home / "a.tmp", place.root / "b")  # which no capsule sees
        (place.home / "a.tmp").unlink()
        with pytest.raises(ImageFailed, match=r"home/a\.tmp, which was deleted") as caught:
            await asyncio.to_thread(image.dump, capsule, str(tmp_path / "image"))
        assert caught.value.fields["intact"]
        (place.tmp / "go").touch()
        await place.logged("written")
        assert (place.root / "b").read_text() == "first second"


async def test_a_process_with_a_namespace_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    code = "import os, subprocess, time\nsubprocess.Popen(['unshare', '-U', 'sleep', '600'])\ntime.sleep(.3)\nprint('on', flush=True)\ntime.sleep(600)"  # noqa: E501
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("on")
        if "unshare" in place.log():
            pytest.skip("no user namespaces are permitted in a capsule here")
        with pytest.raises(ImageFailed, match=r"process \d+ \(sleep\) has a user namespace"):
            await asyncio.to_thread(image.dump, capsule, str(tmp_path / "image"))
