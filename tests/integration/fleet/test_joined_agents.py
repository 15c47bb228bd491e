"""The real service with its own node and a real agent that has joined over TLS, as if on another
machine: joined and run by its commands, with a folder of its own, and nothing shared but the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.connect import write_connection_file
from singularity_proxy.errors import SingularityError, Unavailable, Unsupported
from singularity_scheduler.fleet import MachineFleet, namespaces
from singularity_scheduler.fleet.registry import Registry
from singularity_scheduler.fleet.settings import FleetSettings
from support.agent_kernels import KERNEL, NO_HISTORY, client_of, run
from support.agent_trains import STEPS, TRAINING, losses, native_losses
from support.capsules import needs_criu
from support.fleet import Door, FarAgent, free_port, run_cli
from support.scheduler_service import Platform, platform, until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(400)]

FAR = "a-far"
"""Goes before `local` where both have the same room."""


COUNT = "import time\nfor n in range(10**6): print('tick', n, flush=True); time.sleep(0.1)"


class Machines:
    """What a test gets."""

    def __init__(self, service: Platform, agent: FarAgent, door: Door) -> None:
        self.service, self.agent, self.door = service, agent, door

    @property
    def fleet(self) -> Any:
        return self.service.controller.fleet

    def connected(self) -> bool:
        nodes = self.service.controller.state.nodes
        return FAR in nodes and nodes[FAR].connected

    async def start(self, *argv: str, name: str, **more: Any) -> dict[str, Any]:
        """A session of alice; `more`: of its launch."""
        env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOME": "/tmp"}
        launch = {"mode": "capsule", "argv": [sys.executable, *argv], "env": env, "cwd": "/"}
        launch.update(more)
        return await self.service.client().create_session(
            kind="interactive", launch=launch, name=name
        )

    async def printed(self, session: str) -> str:
        at = (await self.service.client().get_session(session))["node"]
        if at is not None:
            with contextlib.suppress(SingularityError):  # it has just left, or is cut off
                found = await self.fleet.call(
                    at, "session.log", session=session, offset=0, limit=1 << 20
                )
                return str(found["text"])
        return ""

    async def until_printed(self, session: str, text: str) -> str:
        said = ""

        for _ in range(3000):  # a machine at its limit starts torch for a minute
            if text in (said := await self.printed(session)):
                return said
            await asyncio.sleep(0.05)
        raise AssertionError(f"{said}\n{self.agent.log()[-3000:]}")


@contextlib.asynccontextmanager
async def machines(tmp_path: Path, network: str = "", **controller: Any) -> AsyncIterator[Machines]:
    """The service, and a machine that has joined, in a network namespace if one is named. All of
    it is gone afterwards. `controller`: its settings."""
    state, far, store = tmp_path / "state", tmp_path / "far", tmp_path / "store"
    for folder in (state, store):
        folder.mkdir(mode=0o700)
    there = namespaces.address_of(network) if network else "127.0.0.1"
    here = there.rpartition(".")[0] + ".1"  # the machine's own, of the bridge
    uids = f"--NodeAgent.uids_file={tmp_path / 'uids.json'}"

    class Fleet(MachineFleet):
        def __init__(self, **traits: Any) -> None:
            super().__init__(**traits)
            self.local.device_type, self.local.cpu_devices = "cpu", 1
            self.local.agent_args = [
                *(uids, f"--NodeAgent.checkpoint_store={store}"),
                *(f"--NodeAgent.tunnel_ip={here}", "--NodeAgent.warm_proxies=1"),
                "--NodeAgent.proxy_threads=1",
            ]

    registry, port = Registry(str(state)), free_port()
    registry.create(FleetSettings(here, port, here, store=str(store)))
    agent = FarAgent(far, uids, f"--NodeAgent.tunnel_ip={there}", network=network)
    about: dict[str, Any] = {"fleet": Fleet, "controller": controller}
    async with Door(port) as door, platform(tmp_path, **about) as service:
        fleet: Any = service.controller.fleet.bare
        try:
            string = registry.make_join_string(FAR)
            if not network:  # the door is on the loopback
                string = replace(string, port=door.port)
            words = ("node", "join", "-", "--state", str(far))
            code, said, told = await run_cli(*words, given=str(string), network=network)
            assert (code, told) == (0, ""), told
            assert f"the node '{FAR}'" in said
            agent.start()
            box = Machines(service, agent, door)
            await until(box.connected, "the far node is connected")
            yield box
        finally:
            await agent.stop()
            await fleet.stop_agent()


async def test_a_training_on_a_joined_node_outlives_a_cut_line(tmp_path: Path) -> None:
    reference = native_losses()
    async with machines(tmp_path) as box:
        client = box.service.client()
        made = await box.start(TRAINING, "cuda", str(STEPS), str(tmp_path), "0.2", name="train")
        session = made["id"]
        assert made["node"] == FAR
        await box.until_printed(session, "step 3 ")
        await client.park(session)
        at = max(losses(await box.printed(session)))
        await box.until_printed(session, f"step {at + 2} ")  # its next call took a device again
        told = [change["device_state"] for change in await client.history(session)]
        assert {"parked", "held"} <= set(told), told
        kept = await client.checkpoint(session)
        assert kept["last_checkpoint"] is not None
        came = box.door.came
        box.door.cut()
        await until(lambda: box.door.came > came, "the agent dials again")
        await until(box.connected, "the far node is connected again")
        said = await box.until_printed(session, "done")
        assert losses(said) == reference
        assert (await client.get_session(session))["node"] == FAR
        await client.end_session(session)


async def test_sessions_outlive_their_agent_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    async with machines(tmp_path) as box:
        client = box.service.client()
        made = await box.start("-c", "import time; time.sleep(600)", name="sleeper")
        assert made["node"] == FAR
        with pytest.raises(Unsupported, match="belongs to a process of the service's machine"):
            await box.fleet.call(
                FAR,
                "session.start",
                **{"session": "0" * 12, "user": "alice", "kind": "interactive"},
                **{"tier": "standard", "virtual_devices": 1, "epoch": 0},
                launch={"mode": "capsule", "argv": ["true"], "env": {}, "owner_pid": os.getpid()},
            )
        box.agent.signal(signal.SIGSTOP)  # its kernel still answers for it
        await until(lambda: not box.connected(), "the frozen node is hung up on")
        box.agent.signal(signal.SIGCONT)
        await until(box.connected, "the thawed node is connected again")
        box.agent.kill()
        await until(lambda: not box.connected(), "the far node is gone")
        with pytest.raises(Unavailable, match=f"node '{FAR}' is not connected now"):
            await box.fleet.call(FAR, "ping")
        box.agent.start()
        await until(box.connected, "the far node is connected again")
        assert (await client.get_session(made["id"]))["state"] == "ready"
        [hello] = [h for h in await box.fleet.hello() if h["node"] == FAR]
        assert [(s["session"], s["alive"]) for s in hello["sessions"]] == [(made["id"], True)]
        await client.end_session(made["id"])


@needs_criu
async def test_a_session_moves_between_the_services_machine_and_a_joined_one(
    tmp_path: Path,
) -> None:
    async with machines(tmp_path) as box:
        client = box.service.client()
        made = await box.start("-u", "-c", COUNT, name="ticks")
        session = made["id"]
        assert made["node"] == FAR
        for node in ("local", FAR):
            said = await box.until_printed(session, "tick 3\n")
            moved = await client.migrate(session, node=node)
            assert moved["node"] == node, moved
            await box.until_printed(session, f"tick {len(ticks(said)) + 10}\n")
        counted = ticks(await box.printed(session))
        assert counted == list(range(counted[0], counted[-1] + 1))
        await client.end_session(session)


@needs_criu
async def test_a_notebook_moves_to_another_machine_whose_link_is_cut_and_mended(
    tmp_path: Path,
) -> None:
    with far_network() as network:
        async with machines(tmp_path, network) as box, kernel(box, tmp_path) as (session, client):
            await run(client, "import torch; x = torch.arange(4.0, device='cuda') * 2")
            moved = await box.service.client().migrate(session, node=FAR)
            assert moved["node"] == FAR, moved
            assert await run(client, "x += 1; print(x.tolist())") == "[1.0, 3.0, 5.0, 7.0]\n"
            link = ("ip", "-n", network, "link", "set", "eth0")
            await asyncio.to_thread(subprocess.run, [*link, "down"], check=True)
            await until(lambda: not box.connected(), "the cut is noticed")
            await asyncio.to_thread(subprocess.run, [*link, "up"], check=True)
            await until(box.connected, "the far node is connected again")
            assert await run(client, "x += 1; print(x.tolist())") == "[2.0, 4.0, 6.0, 8.0]\n"
            moved = await box.service.client().migrate(session, node="local")
            assert moved["node"] == "local", moved
            assert await run(client, "x += 1; print(x.tolist())") == "[3.0, 5.0, 7.0, 9.0]\n"


@needs_criu
async def test_a_session_whose_machine_dies_goes_on_at_the_services(tmp_path: Path) -> None:
    quick = {"lease_ttl_s": 2.0, "lease_margin_s": 0.5}
    with far_network() as network:
        async with machines(tmp_path, network, **quick) as box:
            client = box.service.client()
            made = await box.start("-u", "-c", COUNT, name="ticks")
            session, left = made["id"], box.agent.folders()
            assert made["node"] == FAR
            await box.until_printed(session, "tick 3\n")
            kept = (await client.checkpoint(session))["last_checkpoint"]
            assert kept["level"] == "process"
            stored = len(ticks(await box.printed(session)))
            await box.until_printed(session, f"tick {stored + 5}\n")
            await asyncio.to_thread(namespaces.destroy, network)
            await until(
                lambda: box.service.controller.state.sessions[session].node == "local",
                "it comes back",
            )
            said = await box.until_printed(session, f"tick {stored + 10}\n")
            counted = ticks(said)
            assert counted == list(range(counted[0], counted[-1] + 1))  # none twice
            view = await client.get_session(session)
            assert view["loss"]["rolled_back"] is True, view
            await client.end_session(session)
            for folder in left:
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def far_network() -> Iterator[str]:
    """A network namespace for the machine that joins. Skips the test where that cannot be."""
    if reason := namespaces.why_not():
        pytest.skip(reason)
    tag = f"j{os.getpid() % 1000000}"
    try:
        yield namespaces.create(tag, [FAR])[FAR]
    finally:
        namespaces.remove(tag)


@contextlib.asynccontextmanager
async def kernel(box: Machines, tmp_path: Path) -> AsyncIterator[tuple[str, AsyncKernelClient]]:
    """A notebook's kernel, which starts beside its server, and a client."""
    info = {"kernel_name": "python3", "ip": "127.0.0.1", "key": b"secret"}
    _, connection = write_connection_file(str(tmp_path / "client.json"), **info)
    argv = [*KERNEL[1:], NO_HISTORY, "--ext", "singularity_kernel"]
    made = await box.start(*argv, name="train.ipynb", connection=dict(connection))
    assert made["node"] == "local"  # though the other one goes first
    client = await client_of(dict(made["launch"]["connection"]))
    try:
        yield made["id"], client
        await box.service.client().end_session(made["id"])
    finally:
        client.stop_channels()


async def test_a_batch_run_runs_on_a_joined_node(tmp_path: Path) -> None:
    async with machines(tmp_path) as box:
        client = box.service.client()
        variables = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        command = {"command": "echo run by $(id -u)", "folder": "/tmp", "python": sys.executable}
        made = await client.submit(run={**command, "variables": variables}, name="words")
        said = await box.until_printed(made["id"], "run by ")
        ended: dict[str, Any] = {}

        async def over() -> bool:
            ended.update(await client.get_session(made["id"]))
            return ended["state"] in ("completed", "failed")

        for _ in range(3000):  # the limit only bounds a failure
            if await over():
                break
            await asyncio.sleep(0.05)
        assert (ended["state"], ended["node"]) == ("completed", FAR), (ended, said)


def ticks(said: str) -> list[int]:
    return [int(n) for n in re.findall(r"^tick (\d+)$", said, re.MULTILINE)]
