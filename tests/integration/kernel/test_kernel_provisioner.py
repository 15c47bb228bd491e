"""Kernels started by Jupyter's own tools become sessions, behave as kernels, and end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.ioloop import AsyncIOLoopKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from singularity_kernel.provision.provisioner import (
    CHANNEL_PORTS,
    KernelNotStarted,
    Mode,
    SingularityProvisioner,
)
from singularity_proxy.errors import BadRequest, Unavailable
from support.kernel_relay import free_ports, wait_until
from support.kernel_service import TOKEN, Scheduler, scheduler

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def platform(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    """The environment of a server of the platform, with a scheduler."""
    with scheduler(short_dir) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SINGULARITY_TIER", "premium")
        monkeypatch.setenv("SINGULARITY_DEVICES", "2")
        monkeypatch.setenv("JUPYTER_TOKEN", "the server's own key")
        monkeypatch.setenv("JPY_SESSION_NAME", "/home/ada/train.ipynb")
        yield running


@pytest.fixture
def specs(tmp_path: Path) -> KernelSpecManager:
    """Our kernelspec, a copy of ipykernel's without a provisioner, and one of another language."""
    folder = tmp_path / "specs"
    ours = json.loads((ROOT / "kernel_ext/kernelspec/kernel.json").read_text())
    echo = tmp_path / "echo.py"
    echo.write_text(ECHO_KERNEL)
    for name, spec in {
        "singularity": ours,
        "plain": {**ours, "metadata": {}},
        "tiered": {**ours, "metadata": {"kernel_provisioner": _provisioner("basic", 1)}},
        "echo": {
            "argv": [sys.executable, str(echo), "-f", "{connection_file}"],
            "display_name": "Echo",
            "language": "echo",
            "metadata": {"kernel_provisioner": {"provisioner_name": "singularity"}},
        },
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "kernel.json").write_text(json.dumps(spec))
    return KernelSpecManager(kernel_dirs=[str(folder)], ensure_native_kernel=False)


def _provisioner(tier: str, devices: int) -> dict[str, Any]:
    return {"provisioner_name": "singularity", "config": {"tier": tier, "devices": devices}}


ECHO_KERNEL = """
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel
class Echo(Kernel):
    implementation = banner = implementation_version = "echo"
    language_info = {"name": "echo", "mimetype": "text/plain", "file_extension": ".txt"}
    def do_execute(self, code, silent, store_history=True, user_expressions=None, **kw):
        self.send_response(self.iopub_socket, "stream", {"name": "stdout", "text": code})
        return {"status": "ok", "execution_count": 1, "payload": [], "user_expressions": {}}
IPKernelApp.launch_instance(kernel_class=Echo)
"""


@asynccontextmanager
async def kernel(
    specs: KernelSpecManager, name: str = "singularity", **start: Any
) -> AsyncIterator[tuple[AsyncKernelManager, Any]]:
    """A started kernel and a client that has seen it answer; shut down afterwards."""
    manager = AsyncKernelManager(kernel_name=name, kernel_spec_manager=specs)
    await manager.start_kernel(**start)
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=60)
        yield manager, client
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


async def run(client: Any, code: str, begun: asyncio.Event | None = None) -> str:
    """What a cell writes; `begun` is set when it has written something."""
    texts = []

    def output(message: dict[str, Any]) -> None:
        if begun is not None and "text" in message["content"]:
            begun.set()
        content = message["content"]
        texts.append(content.get("text") or content.get("data", {}).get("text/plain", ""))
        if message["msg_type"] == "error":
            texts.append(f"{content['ename']}: {content['evalue']}")

    await client.execute_interactive(code, output_hook=output, timeout=60)
    return "".join(texts)


def provisioner(manager: AsyncKernelManager) -> SingularityProvisioner:
    assert isinstance(manager.provisioner, SingularityProvisioner)
    return manager.provisioner


def _on_disk(manager: AsyncKernelManager) -> dict[str, Any]:
    """The clients' connection file; {} when there is none."""
    path = Path(manager.connection_file)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


@pytest.mark.asyncio
async def test_a_kernel_is_a_session(platform: Scheduler, specs: KernelSpecManager) -> None:
    async with kernel(specs) as (manager, client):
        (session,) = platform.sessions
        assert session.json["kind"] == "interactive"
        assert (session.json["tier"], session.json["devices"]) == ("premium", 2)
        assert session.json["name"] == "train.ipynb"
        assert session.launch["owner_pid"] == os.getpid()
        assert await run(client, "print(6 * 7)") == "42\n"
        assert session.kernel is not None
        assert manager.provisioner.pid == session.kernel.pid
        # the magic is there without %load_ext, and says that nobody answers at the socket
        assert "nobody answers" in await run(client, "%singularity")
    assert session.relay is None
    assert session.json["process_state"] != "live"


@pytest.mark.asyncio
async def test_no_token_reaches_the_scheduler_or_the_kernel(
    platform: Scheduler, specs: KernelSpecManager
) -> None:
    async with kernel(specs) as (_, client):
        (session,) = platform.sessions
        code = "import os; print(sorted(v for k, v in os.environ.items()))"
        for text in (str(session.launch), await run(client, code)):
            assert TOKEN not in text
            assert "the server's own key" not in text
            assert platform.url not in text
        assert session.launch["env"]["JPY_SESSION_NAME"] == "/home/ada/train.ipynb"


@pytest.mark.asyncio
async def test_a_kernelspec_chooses_its_tier(platform: Scheduler, specs: KernelSpecManager) -> None:
    async with kernel(specs, "tiered"):
        (session,) = platform.sessions
        assert (session.json["tier"], session.json["devices"]) == ("basic", 1)


@pytest.mark.asyncio
async def test_any_ipykernel_kernelspec_goes_through_the_provisioner(
    platform: Scheduler, specs: KernelSpecManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_client.provisioning import KernelProvisionerFactory

    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "singularity")
    KernelProvisionerFactory.clear_instance()
    try:
        async with kernel(specs, "plain") as (_, client):
            assert len(platform.sessions) == 1
            found = await run(client, "import os; print(os.environ['SINGULARITY_SESSION'])")
            assert found.strip() == platform.sessions[0].json["id"]
    finally:
        KernelProvisionerFactory.clear_instance()


@pytest.mark.asyncio
async def test_a_kernel_of_another_language_is_a_session_too(
    platform: Scheduler, specs: KernelSpecManager
) -> None:
    async with kernel(specs, "echo") as (_, client):
        (session,) = platform.sessions
        assert "--ext" not in session.launch["argv"]
        assert await run(client, "hello") == "hello"


@pytest.mark.asyncio
@pytest.mark.parametrize("local", [True, False])
async def test_restart_keeps_the_place_and_makes_a_new_session(
    platform: Scheduler, specs: KernelSpecManager, local: bool
) -> None:
    platform.local = local
    async with kernel(specs) as (manager, client):
        await run(client, "x = 1")
        ports, place = manager.ports, (manager.transport, manager.ip, manager.curve_publickey)
        assert manager.transport == ("ipc" if local else "tcp")
        assert (manager.curve_publickey is None) is local
        for now in (False, True):
            await manager.restart_kernel(now=now)
            await client.wait_for_ready(timeout=60)
            assert manager.ports == ports
            assert (manager.transport, manager.ip, manager.curve_publickey) == place
            assert await run(client, "print('x' in globals()); x = 1") == "False\n"
    first, second, third = platform.sessions
    for session in (first, second, third):
        assert session.json["process_state"] != "live"
        assert session.ends
    assert len({s.json["id"] for s in platform.sessions}) == 3


@pytest.mark.asyncio
async def test_interrupt_stops_a_cell_and_keeps_the_kernel(
    platform: Scheduler, specs: KernelSpecManager
) -> None:
    async with kernel(specs) as (manager, client):
        await run(client, "x = 5")
        code = "print('on', flush=True)\nimport time\nfor _ in range(600): time.sleep(0.1)"
        begun = asyncio.Event()
        cell = asyncio.ensure_future(run(client, code, begun))
        await asyncio.wait_for(begun.wait(), 60)
        await manager.interrupt_kernel()
        assert "KeyboardInterrupt" in await asyncio.wait_for(cell, 30)
        assert platform.sessions[0].signals == [signal.SIGINT]
        assert await run(client, "print(x)") == "5\n"


@pytest.mark.asyncio
async def test_a_dead_kernel_is_noticed_and_jupyter_restarts_it(
    platform: Scheduler, specs: KernelSpecManager
) -> None:
    manager = AsyncIOLoopKernelManager(kernel_name="singularity", kernel_spec_manager=specs)
    await manager.start_kernel()
    manager.stop_restarter()  # polled below by hand, at no particular speed
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=60)
        process = platform.sessions[0].kernel
        assert process is not None
        os.killpg(process.pid, signal.SIGKILL)
        for _ in range(100):
            if not await manager.is_alive():
                break
            await asyncio.sleep(0.1)
        assert not await manager.is_alive()
        assert await provisioner(manager).poll() == -signal.SIGKILL
        await manager.restart_kernel(now=True)
        manager.stop_restarter()
        await client.wait_for_ready(timeout=60)
        assert await manager.is_alive()
        assert len(platform.sessions) == 2
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


@pytest.mark.asyncio
async def test_a_kernel_stays_alive_while_the_scheduler_is_away(
    platform: Scheduler, specs: KernelSpecManager, caplog: pytest.LogCaptureFixture
) -> None:
    async with kernel(specs) as (manager, client):
        platform.stop()
        for _ in range(3):
            provisioner(manager)._asked_at = 0.0
            assert await manager.is_alive()
        assert await run(client, "print('still here')") == "still here\n"
        assert [r.message for r in caplog.records if "its state is unknown" in r.message][1:] == []
        platform.start()
        provisioner(manager)._asked_at = 0.0
        assert await manager.is_alive()


@pytest.mark.asyncio
async def test_a_kernel_can_be_interrupted_and_ended_while_the_scheduler_is_away(
    platform: Scheduler, specs: KernelSpecManager
) -> None:
    async with kernel(specs) as (manager, client):
        process = platform.sessions[0].kernel
        assert process is not None
        platform.stop()
        code = "print('on', flush=True)\nimport time\nfor _ in range(600): time.sleep(0.1)"
        begun = asyncio.Event()
        cell = asyncio.ensure_future(run(client, code, begun))
        await asyncio.wait_for(begun.wait(), 60)
        await manager.interrupt_kernel()
        assert "KeyboardInterrupt" in await asyncio.wait_for(cell, 30)
        # As the node agent does: a process that has ended is reaped at once.
        ended = asyncio.get_running_loop().run_in_executor(None, process.wait)
        await manager.shutdown_kernel(now=True)
        assert await asyncio.wait_for(ended, 20) == -signal.SIGKILL
        assert not manager.has_kernel


@pytest.mark.asyncio
async def test_polls_are_answered_from_the_last_one(
    platform: Scheduler, specs: KernelSpecManager
) -> None:
    async with kernel(specs) as (manager, _):
        provisioner(manager)._asked_at = 0.0
        before = platform.polls
        for _ in range(50):
            assert await manager.is_alive()
        assert platform.polls - before <= 2


@pytest.mark.asyncio
async def test_a_start_waits_for_a_scheduler_that_restarts(
    platform: Scheduler, specs: KernelSpecManager
) -> None:
    platform.stop()
    asyncio.get_running_loop().call_later(0.7, platform.start)
    async with kernel(specs) as (_, client):
        assert await run(client, "print(1)") == "1\n"
        assert len(platform.sessions) == 1


@pytest.mark.asyncio
async def test_a_refusal_is_one_sentence(
    platform: Scheduler, specs: KernelSpecManager, caplog: pytest.LogCaptureFixture
) -> None:
    platform.refusal = BadRequest("there are 2 devices, not 9: choose fewer")
    manager = AsyncKernelManager(kernel_name="singularity", kernel_spec_manager=specs)
    with pytest.raises(KernelNotStarted) as refused:
        await manager.start_kernel()
    manager.context.destroy(linger=0)
    manager.cleanup_connection_file()
    assert str(refused.value) == "there are 2 devices, not 9: choose fewer"
    assert refused.value.status_code == 400
    assert manager.ready.exception() is refused.value
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert [(r.getMessage(), r.exc_info) for r in errors] == [(str(refused.value), None)]
    assert not manager.has_kernel


@pytest.mark.asyncio
async def test_no_scheduler_at_all_is_said_after_the_wait(
    platform: Scheduler, specs: KernelSpecManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.stop()
    manager = AsyncKernelManager(kernel_name="singularity", kernel_spec_manager=specs)
    manager.config.SingularityProvisioner.service_wait_s = 0.0
    with pytest.raises(KernelNotStarted, match="does not answer") as refused:
        await manager.start_kernel()
    manager.context.destroy(linger=0)
    manager.cleanup_connection_file()
    assert refused.value.status_code == Unavailable.http_status
    assert manager.ready.exception() is refused.value


@pytest.mark.asyncio
async def test_a_number_of_devices_that_is_none_is_said(
    platform: Scheduler, specs: KernelSpecManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINGULARITY_DEVICES", "many")
    manager = AsyncKernelManager(kernel_name="singularity", kernel_spec_manager=specs)
    with pytest.raises(KernelNotStarted, match="SINGULARITY_DEVICES is 'many'"):
        await manager.start_kernel()
    manager.context.destroy(linger=0)
    manager.cleanup_connection_file()
    assert manager.ready.exception() is not None
    assert platform.sessions == []


@pytest.mark.asyncio
async def test_a_port_taken_in_the_meantime_gets_others(
    platform: Scheduler, specs: KernelSpecManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.local = False
    taken: list[socket.socket] = []
    create = platform.create

    def slow(body: dict[str, Any], key: str) -> Any:
        if not taken:
            port = body["launch"]["connection"]["shell_port"]
            taken.append(socket.create_server(("127.0.0.1", port)))
        return create(body, key)

    monkeypatch.setattr(platform, "create", slow)
    try:
        async with kernel(specs) as (manager, client):
            assert manager.shell_port != taken[0].getsockname()[1]
            assert await run(client, "print('connected')") == "connected\n"
            assert _on_disk(manager)["shell_port"] == manager.shell_port
    finally:
        taken[0].close()


@pytest.mark.asyncio
async def test_ports_that_a_user_chose_are_kept_and_encrypted(
    platform: Scheduler, specs: KernelSpecManager
) -> None:
    ports = dict(zip(CHANNEL_PORTS, free_ports(5), strict=True))
    manager = AsyncKernelManager(kernel_name="singularity", kernel_spec_manager=specs, **ports)
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=60)
        assert manager.transport == "tcp"
        assert {name: getattr(manager, name) for name in CHANNEL_PORTS} == ports
        assert _on_disk(manager)["curve_secretkey"]
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


@pytest.mark.asyncio
async def test_cleaning_up_twice_changes_nothing(
    platform: Scheduler, specs: KernelSpecManager
) -> None:
    async with kernel(specs) as (manager, _):
        await manager.shutdown_kernel()
        ends = len(platform.sessions[0].ends)
        await provisioner(manager).cleanup()
        await provisioner(manager).cleanup()
        assert len(platform.sessions[0].ends) == ends == 1
        assert not manager.has_kernel
        assert _on_disk(manager) == {}


@pytest.mark.asyncio
async def test_another_process_can_go_on_with_the_kernel(
    platform: Scheduler, specs: KernelSpecManager
) -> None:
    async with kernel(specs) as (manager, _):
        text = json.dumps(await provisioner(manager).get_provisioner_info())
        other = SingularityProvisioner(kernel_id=manager.kernel_id)
        await other.load_provisioner_info(json.loads(text))
        assert other.has_process
        assert await other.poll() is None
        assert other.connection_info["key"] == manager.session.key
        await other.kill()
        assert await other.wait() == -signal.SIGKILL


# ---- without a platform, and inside a session ----------------------------------------------------


@pytest.mark.asyncio
async def test_without_a_platform_it_runs_here_without_a_device(
    specs: KernelSpecManager, caplog: pytest.LogCaptureFixture
) -> None:
    async with kernel(specs) as (manager, client):
        assert provisioner(manager).mode is Mode.LOCAL
        code = "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
        assert await run(client, code) == "''\n"
        await manager.restart_kernel()
        await client.wait_for_ready(timeout=60)
    said = [r.getMessage() for r in caplog.records if "without an accelerator" in r.getMessage()]
    assert len(said) == 2  # once per start


@pytest.mark.asyncio
async def test_a_kernel_inside_a_session_joins_it(
    platform: Scheduler, specs: KernelSpecManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINGULARITY_SESSION", "0123456789ab")
    async with kernel(specs) as (manager, client):
        assert provisioner(manager).mode is Mode.NESTED
        code = "import os; print([os.environ[f'SINGULARITY_{n}'] for n in ('SESSION', 'NESTED')])"
        assert await run(client, code) == "['0123456789ab', '1']\n"
    assert platform.sessions == []


# ---- command lines -------------------------------------------------------------------------------


def test_a_plain_jupyter_execute_is_a_session(platform: Scheduler, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("%env SINGULARITY_SESSION")],
        metadata={"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}},
    )
    path = tmp_path / "plain.ipynb"
    nbformat.write(notebook, path)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter", "execute", "--inplace", str(path)],
        env={**os.environ, "JUPYTER_DEFAULT_PROVISIONER_NAME": "singularity"},
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (session,) = platform.sessions
    outputs = nbformat.read(path, as_version=4).cells[0].outputs
    assert outputs[0]["data"]["text/plain"] == repr(session.json["id"])
    wait_until(lambda: session.kernel and session.kernel.poll() is not None, why="it did not end")
    assert session.ends
