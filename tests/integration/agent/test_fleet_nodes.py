"""Several nodes on one machine: agents with folders, devices and, where possible, addresses of
their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import NotFound, Unavailable
from singularity_scheduler.fleet import LocalFleet, namespaces
from support.agent import ScriptFleet, alive, until
from support.netns import two_namespaces
from traitlets import TraitError

SCRIPT = Path(__file__).parents[2] / "support" / "agent_with_double.py"


class NodesFleet(ScriptFleet):
    """Several agents with the tests' device proxies."""

    def __init__(self, **traits: Any) -> None:
        super().__init__(SCRIPT, **traits)


@contextlib.asynccontextmanager
async def nodes(*names: str, **traits: Any) -> AsyncIterator[tuple[LocalFleet, Path]]:
    """A fleet of these nodes; everything is gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix="fn-"))
    os.chmod(root, 0o755)
    fleet = NodesFleet(
        state_dir=str(root / "state"),
        runtime_dir=str(root / "rt"),
        nodes=list(names),
        device_type="cpu",
        agent_args=["--NodeAgent.warm_proxies=0"],
        **traits,
    )
    try:
        await fleet.start()
        yield fleet, root
    finally:
        await fleet.stop_agent()
        shutil.rmtree(root, ignore_errors=True)


def announced(root: Path, node: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((root / "state" / node / "agent.json").read_text())
    return body


@pytest.mark.asyncio
async def test_two_agents_with_separate_folders_and_devices() -> None:
    async with nodes("node-1", "node-2", cpu_devices=3) as (fleet, root):
        hellos = {h["node"]: h for h in await fleet.hello()}
        assert set(hellos) == {"node-1", "node-2"}
        assert [len(h["devices"]) for h in hellos.values()] == [3, 3]
        uuids = [d["uuid"] for h in hellos.values() for d in h["devices"]]
        assert len(set(uuids)) == 6, "a device of one node is none of the other's"
        places = [announced(root, n) for n in hellos]
        for what in ("socket", "shm_dir", "runtime_dir", "process"):
            assert places[0][what] != places[1][what]
        with pytest.raises(NotFound, match="no node 'node-3'"):
            await fleet.call("node-3", "hello")


@pytest.mark.asyncio
async def test_one_that_dies_is_started_again_and_the_other_does_not_notice() -> None:
    heard: list[tuple[str, bool]] = []
    async with nodes("node-1", "node-2") as (fleet, root):
        fleet.on_connection(lambda node, up: heard.append((node, up)))
        first, second = (announced(root, n) for n in ("node-1", "node-2"))
        os.kill(int(first["process"][0]), signal.SIGKILL)
        await until(lambda: heard == [("node-1", False), ("node-1", True)])
        assert announced(root, "node-1")["instance"] != first["instance"]
        assert announced(root, "node-2") == second
        # A service that is started anew finds both.
        other = NodesFleet(
            state_dir=fleet.state_dir, runtime_dir=fleet.runtime_dir, nodes=["node-1", "node-2"]
        )
        await other.start()
        assert announced(root, "node-2") == second
        await other.stop()
    assert not alive(int(second["process"][0]))


@pytest.mark.asyncio
async def test_one_that_does_not_start_keeps_nobody_from_working(tmp_path: Path) -> None:
    traits = {"netns": {"node-2": "sg-does-not-exist"}}
    async with nodes("node-1", "node-2", **traits) as (fleet, _):
        assert [h["node"] for h in await fleet.hello()] == ["node-1"]
        with pytest.raises(Unavailable, match="not connected"):
            await fleet.call("node-2", "hello")
    alone = LocalFleet(state_dir=str(tmp_path), nodes=["a"], netns={"a": "sg-does-not-exist"})
    with pytest.raises(Unavailable, match="there is no network namespace 'sg-does-not-exist'"):
        await alone.start()
    await alone.stop()


@pytest.mark.parametrize("names", [["a/b"], [""], ["a", "a"], ["-a"]])
def test_names_that_cannot_be(names: list[str]) -> None:
    with pytest.raises(TraitError):
        LocalFleet(nodes=names)


@pytest.mark.asyncio
async def test_agents_with_addresses_of_their_own() -> None:
    with two_namespaces() as addresses:
        first, second = addresses
        async with nodes("node-1", "node-2", netns={"node-1": first, "node-2": second}) as (
            fleet,
            root,
        ):
            for node, name in (("node-1", first), ("node-2", second)):
                pid = int(announced(root, node)["process"][0])
                own = os.stat(f"/proc/{pid}/ns/net").st_ino
                assert own == os.stat(f"/run/netns/{name}").st_ino
            assert len(await fleet.hello()) == 2
            # They reach each other over the network, as nodes do.
            there = await asyncio.create_subprocess_exec(
                *("ip", "netns", "exec", second, "python3", "-c"),
                "import socket; s = socket.create_server(('0.0.0.0', 7123)); print('up', "
                "flush=True); print(s.accept()[1][0])",
                stdout=asyncio.subprocess.PIPE,
            )
            assert there.stdout is not None
            assert (await there.stdout.readline()) == b"up\n"
            here = await asyncio.create_subprocess_exec(
                *("ip", "netns", "exec", first, "python3", "-c"),
                f"import socket; socket.create_connection(('{addresses[second]}', 7123), 10)",
            )
            assert await here.wait() == 0
            assert (await there.stdout.readline()).decode().strip() == addresses[first]
            await there.wait()


def mac_address_of(link: str) -> str:
    """The MAC address of one of the machine's network links; "" when it has gone, or is going."""
    with contextlib.suppress(OSError):
        return Path(f"/sys/class/net/{link}/address").read_text()
    return ""


@pytest.mark.asyncio
async def test_the_machine_keeps_its_address_for_others_when_a_node_dies() -> None:
    with two_namespaces() as addresses:
        tag = next(iter(addresses)).rpartition("-")[0]
        before = mac_address_of(f"{tag}br")
        for number in (2, 1):
            cable = f"{tag}v{number}"
            assert mac_address_of(cable)
            namespaces.destroy(f"{tag}-{number}")
            await until(lambda cable=cable: not mac_address_of(cable))
            assert mac_address_of(f"{tag}br") == before
