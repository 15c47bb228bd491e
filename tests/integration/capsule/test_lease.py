"""Pid 1 of a capsule stops everything when the capsule's time is over, whoever is there or not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.capsule.images import image
from singularity_proxy.capsule.lease_word import LeaseWord
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.capsule.tree import state_of
from singularity_scheduler.agent.rights.leases import boot_clock
from support.capsules import Place, Places, needs_criu, needs_namespaces
from support.processes import stop_process
from support.sanitizer import build_holder

pytestmark = needs_namespaces

WRITER = """
import os, subprocess, sys, threading, time
def write(name):
    number = 0
    while True:
        number += 1
        with open(name, "w") as file:
            file.write(str(number))
        time.sleep(0.002)
if len(sys.argv) == 1:
    threading.Thread(target=write, args=("thread",), daemon=True).start()
    subprocess.Popen([sys.executable, __file__, "child"])
write(sys.argv[-1] if len(sys.argv) > 1 else "main")
"""


class Leased:
    """A capsule in which three threads of two processes write files all the time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.word = place.lease()

    async def start(self) -> NamespaceCapsule:
        program = self.place.home / "writer.py"
        program.write_text(WRITER)
        program.chmod(0o644)
        self.capsule = await self.place.start(
            sys.executable, str(program), lease=self.word.path, cwd=str(self.place.home)
        )
        await self.place.until(lambda: all(self.numbers().values()))
        return self.capsule

    def numbers(self) -> dict[str, str]:
        files = {n: self.place.home / n for n in ("main", "thread", "child")}
        return {n: f.read_text() if f.exists() else "" for n, f in files.items()}

    async def goes_on(self) -> None:
        before = self.numbers()
        await self.place.until(lambda: all(v != before[n] for n, v in self.numbers().items()))

    async def stands(self) -> None:
        """Frozen within the time of one look, and nothing is written any more."""
        await self.place.until(lambda: self.capsule.frozen)
        before = self.numbers()
        await asyncio.sleep(0.3)
        assert self.numbers() == before


@pytest.mark.asyncio
async def test_without_an_end_it_runs_and_with_one_it_stops_at_that_time() -> None:
    async with Places() as place:
        leased = Leased(place)
        capsule = await leased.start()
        end = boot_clock() + 1.5
        leased.word.write(end)
        while not capsule.frozen:
            await asyncio.sleep(0.02)
        assert -0.3 < boot_clock() - end < 1.0
        await leased.stands()
        leased.word.write(boot_clock() + 60)
        await leased.goes_on()
        leased.word.write(None)
        await asyncio.sleep(1.2)
        await leased.goes_on()


@pytest.mark.asyncio
async def test_who_continues_a_process_changes_nothing() -> None:
    async with Places() as place:
        leased = Leased(place)
        capsule = await leased.start()
        leased.word.write(1.0)
        await leased.stands()
        for member in capsule.members():
            os.kill(member.identity.pid, signal.SIGCONT)
        await asyncio.sleep(1.2)
        await leased.stands()
        main = capsule.main()
        assert main is not None
        os.kill(main.pid, signal.SIGKILL)
        assert await capsule.wait(10)


@pytest.mark.asyncio
async def test_what_the_user_had_stopped_stays_stopped() -> None:
    async with Places() as place:
        leased = Leased(place)
        capsule = await leased.start()
        [child] = [m for m in capsule.members() if m.pid != 5001]
        stop_process(child.identity.pid)
        leased.word.write(1.0)
        await leased.stands()
        leased.word.write(None)
        main = capsule.main()
        assert main is not None
        await place.until(lambda: state_of(main.pid) != "T")
        assert state_of(child.identity.pid) == "T"


@pytest.mark.asyncio
async def test_what_is_frozen_after_pid_1_has_answered_stays_so() -> None:
    async with Places() as place:
        leased = Leased(place)
        capsule = await leased.start()
        for _ in range(3):
            leased.word.write(1.0)
            await leased.stands()
            leased.word.write(None)
            assert leased.word.obeyed(capsule.init, 5.0)
            assert not capsule.frozen
            await asyncio.to_thread(capsule.freeze)
            before = leased.numbers()
            await asyncio.sleep(1.2)  # longer than between two looks of pid 1
            assert leased.numbers() == before
            await asyncio.to_thread(capsule.thaw)
            await leased.goes_on()
        stop_process(capsule.init.pid)
        assert not leased.word.obeyed(capsule.init, 0.2)
        os.kill(capsule.init.pid, signal.SIGCONT)
        await capsule.end(0)
        assert leased.word.obeyed(capsule.init, 5.0)


@needs_criu
@pytest.mark.asyncio
async def test_an_image_is_taken_and_restored_while_the_time_is_over(tmp_path: Path) -> None:
    async with Places() as place:
        leased = Leased(place)
        capsule = await leased.start()
        leased.word.write(1.0)
        await leased.stands()
        folder = str(tmp_path / "image")
        await asyncio.to_thread(image.dump, capsule, folder)
        assert capsule.frozen
        await capsule.end(0)
        again = await place.prepare(lease=leased.word.path)
        leased.capsule = again
        await asyncio.to_thread(image.restore, again, folder)
        again.thaw()  # too early: pid 1 stops it again
        await asyncio.sleep(1.2)
        await leased.stands()
        leased.word.write(None)
        again.thaw()
        await leased.goes_on()


@pytest.mark.asyncio
async def test_many_processes_that_come_and_go_are_stopped() -> None:
    code = (
        "import os, time\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        while True:\n"
        "            pid = os.fork()\n"
        "            if pid == 0:\n"
        "                open(f'w{os.getpid()}', 'a').write('x'); os._exit(0)\n"
        "            os.waitpid(pid, 0)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    async with Places() as place:
        word = place.lease()
        capsule = await place.python(code, lease=word.path)
        await place.logged("ready")
        word.write(1.0)
        await place.until(lambda: capsule.frozen)
        await asyncio.sleep(0.1)
        assert capsule.frozen
        files = len(os.listdir(place.home))
        await asyncio.sleep(0.3)
        assert len(os.listdir(place.home)) == files
        word.write(None)
        await place.until(lambda: len(os.listdir(place.home)) > files)


@pytest.mark.asyncio
async def test_the_user_cannot_reach_the_word() -> None:
    code = (
        "import os\n"
        "found = []\n"
        "for fd in range(3, 200):\n"
        "    try: os.fstat(fd); found.append(fd)\n"
        "    except OSError: pass\n"
        "try: names = os.listdir('/proc/1/fd')\n"
        "except PermissionError: names = 'refused'\n"
        "print('open', found, names, flush=True)\n"
    )
    async with Places() as place:
        word = place.lease()
        await place.python(code, lease=word.path)
        await place.logged("open ")
        assert "open [] " in place.log() or "open [3] " in place.log(), place.log()
        if place.uid != os.geteuid():
            assert "refused" in place.log()


def test_a_sanitized_pid_1_makes_no_mistake(tmp_path: Path) -> None:
    program = build_holder(tmp_path)
    word = LeaseWord(str(tmp_path / "lease"))
    lease, report = os.open(word.path, os.O_RDONLY), os.pipe()
    names = tmp_path / "errors"
    words: list[Any] = [program, "run", "--report", str(report[1]), "--lease", str(lease)]
    loop = "for i in 1 2 3 4 5 6 7 8; do (while :; do echo x >>n; done) & done; wait"
    words += ["--cwd", str(tmp_path), "--log", f"{tmp_path}/log", "--", "/bin/sh", "-c", loop]
    environment = {**os.environ, "ASAN_OPTIONS": f"log_path={names}:detect_leaks=0"}
    with subprocess.Popen(words, pass_fds=(report[1], lease), env=environment) as holder:
        written = tmp_path / "n"

        def size() -> int:
            return written.stat().st_size if written.exists() else 0

        def wait(true: Any) -> None:
            deadline = time.monotonic() + 20
            while not true():
                assert time.monotonic() < deadline
                assert holder.poll() is None
                time.sleep(0.05)

        def grows() -> bool:
            before = size()
            time.sleep(0.2)
            return size() > before

        try:
            for _ in range(3):
                word.write(None)
                wait(grows)
                word.write(1.0)
                wait(lambda: not grows())
        finally:
            holder.kill()
            word.close()
            for fd in (lease, *report):
                os.close(fd)
    assert list(tmp_path.glob("errors*")) == []
