"""Device proxies as copies of a process that has loaded torch."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from singularity_proxy.capsule.launcher import helper_environment
from singularity_proxy.capsule.process import ProcessIdentity, ProcessWatch
from singularity_proxy.capsule.tree import children
from singularity_proxy.device.template import Template, proxy_command
from singularity_proxy.errors import ProxyNotReady, Unavailable
from singularity_proxy.wire import rpc
from singularity_scheduler.agent.processes import PR_SET_CHILD_SUBREAPER, adopt_orphans

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    adopt_orphans()
    yield tmp_path_factory.mktemp("t")
    # Orphans that other tests of this process make are none of its children again.
    asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest_asyncio.fixture(loop_scope="module")
async def template(folder: Path) -> AsyncIterator[Template]:
    made = Template(str(folder / "template.log"), helper_environment(os.environ))
    yield made
    await made.close()
    assert not (folder / "template.log").exists()


async def importing(template: Template) -> None:
    """Wait until there is a process that imports torch."""
    async with asyncio.timeout(30):
        while template.watch is None:
            await asyncio.sleep(0.01)


async def listening(path: Path) -> rpc.Peer:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(Unavailable):
                return await rpc.connect(str(path))
            await asyncio.sleep(0.01)


def shown(pid: int) -> list[str]:
    """The command line that a process shows."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")


def own_kb(pid: int) -> int:
    """Kilobytes that a process shares with nobody."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


async def test_a_proxy_is_a_child_of_its_own_and_little_memory(
    template: Template, folder: Path
) -> None:
    made = []
    for name in ("one", "two"):
        socket = folder / f"{name}.sock"
        identity = await template.start(str(socket), str(folder / f"{name}.log"))
        assert shown(identity.pid) == proxy_command(str(socket))
        assert os.getpgid(identity.pid) == identity.pid
        peer = await listening(socket)
        assert (await peer.call("stats"))["pid"] == identity.pid
        assert own_kb(identity.pid) < 30_000, "of a process that has imported torch"
        made.append((ProcessWatch(identity), peer))
    for (watch, peer), signum in zip(made, (signal.SIGKILL, signal.SIGSEGV), strict=True):
        watch.signal(signum)
        assert await watch.wait(10)
        assert watch.exit_code == -signum
        await peer.close()


async def end(pid: int) -> None:
    """End a proxy that has just been started."""
    proxy = ProcessWatch(ProcessIdentity.of(pid))
    proxy.signal(signal.SIGKILL)
    assert await proxy.wait(10)


async def test_the_next_proxy_comes_from_another_template_when_one_is_gone(
    template: Template, folder: Path
) -> None:
    await end((await template.start(str(folder / "1"), str(folder / "1.log"))).pid)
    first = template.watch
    assert first is not None
    first.signal(signal.SIGKILL)
    assert await first.wait(10)
    await end((await template.start(str(folder / "2"), str(folder / "2.log"))).pid)
    second = template.watch
    assert second is not None
    second.signal(signal.SIGSTOP)
    with pytest.raises(ProxyNotReady, match=r"did not get ready \(it was stopped\)$"):
        await template.start(str(folder / "3"), str(folder / "3.log"))
    assert await second.wait(10)
    await end((await template.start(str(folder / "4"), str(folder / "4.log"))).pid)


async def test_a_template_ends_with_its_agent_and_proxies_go_on(
    template: Template, folder: Path
) -> None:
    proxy = ProcessWatch(await template.start(str(folder / "p"), str(folder / "p.log")))
    watch = template.watch
    assert watch is not None
    assert template._control is not None
    template._control.close()  # as when the agent is killed
    assert await watch.wait(10)
    assert (watch.exit_code, proxy.alive) == (0, True)
    await end(proxy.pid)


async def test_a_proxy_that_nobody_waits_for_any_more_is_ended(
    template: Template, folder: Path
) -> None:
    first = asyncio.ensure_future(template.start(str(folder / "c"), str(folder / "c.log")))
    second = asyncio.ensure_future(template.start(str(folder / "d"), str(folder / "d.log")))
    await importing(template)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await end((await second).pid)
    assert not (folder / "c.log").exists()
    assert not (folder / "c").exists()
    assert [pid for pid in children(os.getpid()) if str(folder / "c") in shown(pid)] == []


async def test_closing_ends_a_template_that_imports_torch(template: Template, folder: Path) -> None:
    job = asyncio.ensure_future(template.start(str(folder / "e"), str(folder / "e.log")))
    await importing(template)
    await template.close()
    with pytest.raises(ProxyNotReady):
        await job


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one core: no library starts threads")
async def test_where_importing_torch_starts_threads_each_proxy_is_started_by_itself(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = {**helper_environment(os.environ), "OPENBLAS_NUM_THREADS": "2"}
    template = Template(str(folder / "threads.log"), env)
    try:
        for name in ("x", "y"):
            identity = await template.start(str(folder / name), str(folder / f"{name}.log"))
            peer = await listening(folder / name)
            assert (await peer.call("stats"))["pid"] == identity.pid
            await peer.close()
            assert shown(identity.pid) == proxy_command(str(folder / name))
            await end(identity.pid)
        assert template.watch is None
        assert [r.message.partition(",")[0] for r in caplog.records] == [
            "device proxies are started one by one"
        ]
    finally:
        await template.close()
