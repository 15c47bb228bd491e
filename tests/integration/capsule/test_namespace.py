"""Capsules in namespaces of their own: what is inside, how they end, who sees whom."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from singularity_proxy.capsule import namespace
from singularity_proxy.capsule.images import criu
from singularity_proxy.capsule.launcher import Capsule, CapsuleSpec, spawn
from singularity_proxy.capsule.namespace import MAIN_PID, NamespaceCapsule, adopt
from singularity_proxy.capsule.process import ProcessIdentity, ProcessWatch
from singularity_proxy.capsule.tree import owner_of, state_of
from singularity_proxy.errors import BadRequest, Unavailable
from support.capsules import OWN_UID, Places, needs_namespaces
from support.uids import needs_own_uids, run_without_root

pytestmark = [needs_namespaces, pytest.mark.asyncio]


async def test_inside_are_its_own_processes_and_its_own_tmp() -> None:
    code = """
import json, os
open("/tmp/mine", "w").write("x")
open("/dev/shm/mine", "w").write("x")
print(json.dumps({
    "pid": os.getpid(), "sid": os.getsid(0), "uid": os.getuid(), "groups": os.getgroups(),
    "processes": sorted(int(p) for p in os.listdir("/proc") if p.isdigit()),
    "tmp": sorted(os.listdir("/tmp")), "shm": sorted(os.listdir("/dev/shm")),
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
    "stdin": os.readlink("/proc/self/fd/0"), "stdout": os.readlink("/proc/self/fd/1"),
    "cwd": os.getcwd(), "home": os.path.isdir(os.environ["HOME"]), "umask": os.umask(0),
}))
"""
    async with Places() as place:
        capsule = await place.python(code, umask=0o027)
        assert await capsule.wait(30)
        assert capsule.watch.exit_code == 0, place.log()
        seen = json.loads(place.log())
        assert seen["pid"] == seen["sid"] == MAIN_PID
        assert seen["processes"] == [1, MAIN_PID]
        assert (seen["uid"], seen["umask"]) == (place.uid, 0o027)
        assert seen["descriptors"] == ["0", "1", "2"]
        assert (seen["stdin"], seen["stdout"]) == ("/dev/null", str(place.folder / "capsule.log"))
        assert (seen["cwd"], seen["home"]) == (str(place.home), True)
        # A checkout below /tmp stays, because the product is loaded from it.
        product = {Path(f).parts[2] for f in (sys.prefix, __file__) if f.startswith("/tmp/")}
        assert seen["tmp"] == sorted({"mine", place.root.parent.name} | product)
        assert seen["shm"] == sorted(["mine", place.shm.name])
        assert (place.tmp / "mine").read_text() == "x"
        assert "mine" not in os.listdir("/tmp") + os.listdir("/dev/shm")
        assert (place.folder / "capsule.log").stat().st_mode & 0o777 == 0o600


@needs_own_uids
async def test_a_mapped_uid_has_no_rights_and_gets_none() -> None:
    async with Places() as place:
        command = "grep -E 'CapPrm|CapEff|CapAmb|NoNewPrivs|Groups|^SigIgn' /proc/self/status"
        capsule = await place.start("sh", "-c", command)
        assert await capsule.wait(30)
        found = dict(line.split(":") for line in place.log().splitlines())
        for name in ("CapPrm", "CapEff", "CapAmb", "SigIgn"):
            assert int(found[name].strip(), 16) == 0
        assert found["NoNewPrivs"].strip() == "1"
        assert found["Groups"].split() in ([], [str(place.uid)])
        for holder in (capsule.identity.pid, capsule.init.pid):
            with contextlib.suppress(FileNotFoundError):
                assert owner_of(holder) == (place.uid, place.uid)


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 7", 7), ("exit 0", 0), ("kill -9 $$", -9), ("kill -SEGV $$", -11), ("exit 137", 137)],
)
async def test_its_end_is_told_as_it_was(command: str, code: int) -> None:
    async with Places() as place:
        ends: list[int | None] = []
        from support.capsules import LAUNCHER

        assert LAUNCHER is not None
        capsule = await LAUNCHER.start(
            place.spec("sh", "-c", command), lambda watch: ends.append(watch.exit_code)
        )
        assert await capsule.wait(30)
        assert capsule.watch.exit_code == code
        assert ends == [code]


async def test_the_end_of_the_main_process_ends_everything() -> None:
    async with Places() as place:
        code = "import subprocess; subprocess.Popen(['setsid', 'sleep', '600']); print('on')"
        capsule = await place.python(code)
        assert await capsule.wait(30)
        assert capsule.watch.exit_code == 0
        assert capsule.members() == []


async def test_end_asks_first_and_then_kills_the_whole_tree() -> None:
    polite = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); print('on', flush=True); time.sleep(600)"  # noqa: E501
    deaf = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.fork(); print('on', flush=True); time.sleep(600)"  # noqa: E501
    async with Places() as place:
        capsule = await place.python(polite)
        await place.logged("on")
        assert await capsule.end(10) == 3
        capsule = await place.python(deaf)
        await place.until(lambda: place.log().count("on") == 3)
        members = capsule.members()
        assert len(members) == 2
        assert await capsule.end(0.05) == -9
        for member in members:
            assert not ProcessWatch(member.identity).alive


async def test_a_stopped_tree_sees_the_polite_end_too() -> None:
    async with Places() as place:
        capsule = await place.start("sleep", "600")
        await asyncio.to_thread(capsule.freeze)
        assert await capsule.end(10) == -15


@pytest.mark.parametrize("which", ["identity", "init"])
async def test_killing_the_holder_kills_the_tree(which: str) -> None:
    async with Places() as place:
        capsule = await place.python(
            "import os, time; os.fork(); print('on', flush=True); time.sleep(600)"
        )
        await place.until(lambda: place.log().count("on") == 2)
        watches = [ProcessWatch(m.identity) for m in capsule.members()]
        assert len(watches) == 2
        os.kill(getattr(capsule, which).pid, signal.SIGKILL)
        assert await capsule.wait(10)
        assert capsule.watch.exit_code == -9
        for watch in watches:
            assert await watch.wait(10)


async def test_signals_reach_the_group_of_the_main_process() -> None:
    code = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time\\nprint('child', flush=True)\\ntry: time.sleep(600)\\nexcept KeyboardInterrupt: print('child interrupted')"])
print("on", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    child.wait()
    print("interrupted", flush=True)
time.sleep(600)
"""  # noqa: E501
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("on")
        await place.logged("child")
        assert capsule.signal(signal.SIGINT)
        await place.logged("child interrupted")
        await place.until(lambda: "\ninterrupted" in place.log())
        # The holder passes on what is sent to the pid that people are told.
        os.killpg(capsule.pid, signal.SIGTERM)
        assert await capsule.wait(10)
        assert capsule.watch.exit_code == -15
        assert not capsule.signal(signal.SIGINT)


async def test_an_ignored_interrupt_of_the_starter_is_not_inherited() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        async with Places() as place:
            capsule = await place.start("sleep", "600")
            assert capsule.signal(signal.SIGINT)
            assert await capsule.wait(10)
            assert capsule.watch.exit_code == -2
    finally:
        signal.signal(signal.SIGINT, before)


async def test_another_agent_takes_it_over() -> None:
    async with Places() as place:
        capsule = await place.start("sleep", "600")
        capsule.watch.close()
        found = adopt(ProcessIdentity(*capsule.identity.to_json()))
        assert isinstance(found, NamespaceCapsule)
        assert found.init == capsule.init
        assert found.main() is not None
        assert await found.end(5) == -15


async def test_adopting_what_an_ordinary_launcher_started() -> None:
    async with Places() as place:
        log = str(place.folder / "plain.log")
        identity = spawn(CapsuleSpec(["sleep", "600"], {}, "/", log))
        found = adopt(identity)
        assert type(found) is Capsule
        assert await found.end(5) == -15
        assert type(adopt(identity)) is Capsule  # and what is gone is gone
        ends: list[ProcessWatch] = []
        adopt(identity, ends.append)
        await place.until(lambda: len(ends) == 1)


async def test_a_start_that_fails_says_why_and_leaves_nothing() -> None:
    async with Places() as place:
        with pytest.raises(BadRequest, match="'not-there' cannot be started"):
            await place.start("not-there")
        with pytest.raises(BadRequest, match="cannot start in the folder '/not/there'"):
            await place.start("true", cwd="/not/there")
        with pytest.raises(BadRequest, match="no command"):
            await place.start()
        (place.folder / "here").mkdir()
        with pytest.raises(BadRequest, match=r"'.*/here' cannot be started"):
            await place.start(str(place.folder / "here"))


@needs_own_uids
async def test_a_folder_that_the_user_may_not_enter() -> None:
    async with Places() as place:
        closed = place.root / "closed"
        closed.mkdir(mode=0o700)
        with pytest.raises(BadRequest, match="choose one that its user may enter"):
            await place.start("true", cwd=str(closed))


async def test_a_freeze_that_fails_lets_those_go_on_that_are_only_about_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal to stop that was sent and not yet taken shows in no state; the process would stand
    still from then on."""
    monkeypatch.setattr(namespace, "FREEZE_S", 0.3)
    code = """
import ctypes, os, subprocess, time
libc = ctypes.CDLL(None)
child = subprocess.Popen(["sleep", "600"])
libc.ptrace(16, child.pid, None, None)  # as a debugger: the child cannot be stopped for good
os.waitpid(child.pid, 0x40000000)
libc.ptrace(7, child.pid, None, None)
print("on", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.01)
print("went on", flush=True)
"""
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("on\n")
        monkeypatch.setattr(namespace, "state_of", lambda _: "R")
        with pytest.raises(Unavailable, match="traced by a debugger"):
            await asyncio.to_thread(capsule.freeze)
        (place.tmp / "go").touch()
        await place.logged("went on\n")


async def test_a_thaw_reaches_what_is_just_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a CRIU that has let go of it a moment ago."""
    async with Places() as place:
        capsule = await place.python(
            "import time\nfor n in range(10**6): print(n, flush=True); time.sleep(.01)"
        )
        await place.logged("3")
        await asyncio.to_thread(capsule.freeze)
        with monkeypatch.context() as patch:
            patch.setattr(namespace, "state_of", lambda _: "R")
            await asyncio.to_thread(capsule.thaw)
        size = len(place.log())
        await place.until(lambda: len(place.log()) > size)


async def test_a_second_freeze_takes_nothing_for_stopped_by_the_user() -> None:
    """The first stopped them; one was let go meanwhile, as by a CRIU that has just left."""
    code = """
import os, signal, subprocess, time
stopped = subprocess.Popen(["sleep", "600"])
os.kill(stopped.pid, signal.SIGSTOP)
os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
subprocess.Popen("while :; do echo child; sleep 0.01; done", shell=True)
while True:
    print("main", flush=True)
    time.sleep(0.01)
"""
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("child\n")
        await place.logged("main\n")
        await asyncio.to_thread(capsule.freeze)
        by_user = capsule.stopped_by_user
        assert len(by_user) == 1
        main = capsule.main()
        assert main is not None
        os.kill(main.pid, signal.SIGCONT)
        await place.until(lambda: not capsule.frozen)
        await asyncio.to_thread(capsule.freeze)
        assert capsule.stopped_by_user == by_user
        await asyncio.to_thread(capsule.thaw)
        before = place.log()
        await place.until(
            lambda: {"main", "child"} <= set(place.log()[len(before) :].splitlines()[1:])
        )
        assert [state_of(m.identity.pid) for m in capsule.members()].count("T") == 1


async def test_freeze_stops_everything_and_thaw_nothing_more() -> None:
    code = """
import os, signal, subprocess, sys, threading, time
stopped = subprocess.Popen(["sleep", "600"])
os.kill(stopped.pid, signal.SIGSTOP)
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
threading.Thread(target=lambda: [time.sleep(0.001) for _ in iter(int, 1)], daemon=True).start()
while True:
    subprocess.run(["true"])  # processes come and go, some of them by vfork
    print(".", end="", flush=True)
"""
    async with Places() as place:
        capsule = await place.python(code)
        await place.until(lambda: len(place.log()) > 20)
        for _ in range(3):
            await asyncio.to_thread(capsule.freeze)
            assert capsule.frozen
            size = len(place.log())
            await asyncio.sleep(0.05)
            assert len(place.log()) == size
            assert len(capsule.stopped_by_user) == 1
            await asyncio.to_thread(capsule.thaw)
            await place.until(lambda size=size: len(place.log()) > size)  # type: ignore[misc]
        states = [state_of(m.identity.pid) for m in capsule.members()[:3]]
        assert states.count("T") == 1


async def test_a_shell_does_not_notice_that_its_job_was_frozen() -> None:
    async with Places() as place:
        capsule = await place.start("bash", "-ic", "sleep 0.7; echo slept $?")
        await place.until(lambda: len(capsule.members()) >= 2)
        await asyncio.to_thread(capsule.freeze)
        await asyncio.to_thread(capsule.thaw)
        assert await capsule.wait(30)
        assert "slept 0" in place.log()
        assert "topped" not in place.log()


@needs_own_uids
async def test_users_neither_see_nor_reach_each_other() -> None:
    code = """
import os, sys
other, folder, ring, holder, init, main = sys.argv[1:]
for path in (folder, folder + "/capsule.log", ring, f"{ring}/r1.ring"):
    try:
        os.stat(path), os.listdir(path) if os.path.isdir(path) else open(path).read()
        print("reached", path)
    except OSError:
        pass
for pid in map(int, (holder, init, main)):
    try:
        os.kill(pid, 0)
        if pid != os.getpid(): print("signalled", pid)
    except ProcessLookupError:
        pass
print("processes", sorted(int(p) for p in os.listdir("/proc") if p.isdigit()))
"""
    async with Places() as alice, Places(1) as bob:
        assert alice.uid != bob.uid
        victim = await alice.start("sleep", "600")
        (alice.shm / "r1.ring").write_text("secret")
        main = victim.main()
        assert main is not None
        names = [str(alice.uid), str(alice.folder), str(alice.shm)]
        pids = [str(p.pid) for p in (victim.identity, victim.init, main)]
        spy = await bob.start(sys.executable, "-c", code, *names, *pids)
        assert await spy.wait(30)
        assert bob.log().splitlines() == ["processes [1, 5001]"]
        # Not from an ordinary process of another uid on the machine either.
        log = str(bob.folder / "plain.log")
        plain = ProcessWatch(
            spawn(
                CapsuleSpec(
                    ["sh", "-c", f"kill {' '.join(pids)}; cat /proc/{main.pid}/root/etc/hostname"],
                    {"PATH": os.environ["PATH"]}, "/", log, uid=bob.uid, gid=bob.uid,
                )
            )
        )  # fmt: skip
        assert await plain.wait(30)
        assert plain.exit_code != 0
        assert (bob.folder / "plain.log").read_text().count("not permitted") == 3
        assert victim.watch.alive


@needs_own_uids
async def test_an_agent_that_is_not_root_makes_a_user_namespace(short_dir: Path) -> None:
    namespace.holder_program()  # in a folder that everybody may read
    script = Path(namespace.__file__).parents[3] / "tests/support/capsule_without_root.py"
    found = await asyncio.to_thread(run_without_root, script, short_dir, 60)
    assert found["why"] == "capsules have pid, mount and user namespaces of their own."
    assert found["user_namespace"]
    assert found["frozen"]
    assert found["no_image"] == "" or not criu.probe().ok
    assert found["log"].splitlines() == [f"5001 {OWN_UID} []"]
    assert found["exit_code"] == 7
