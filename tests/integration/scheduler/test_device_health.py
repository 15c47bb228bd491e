"""Device health from NVML's replayed answers through the real agent and the real service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import Conflict, Forbidden, NotFound
from singularity_scheduler.fleet import LocalFleet
from support.nvml_replies import gpu, write
from support.scheduler_service import Platform, platform

SUPPORT = Path(__file__).parents[2] / "support"
ONE, TWO = (f"GPU-0000000{i}-1111-2222-3333-444444444444" for i in (0, 1))


class GpuFleet(LocalFleet):
    """The real agent on a machine with two GPUs whose NVML is replayed."""

    def command(self, node: str = "") -> list[str]:
        command: list[str] = super().command(node)
        place = command.index("-m")
        command[place : place + 2] = [str(SUPPORT / "agent_with_nvml.py")]
        settings = ["--NodeAgent.health_every_s=0.2", "--NodeAgent.warm_proxies=0"]
        return [*command, *settings]


@contextlib.asynccontextmanager
async def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Platform]:
    write(tmp_path / "world.json", {"gpus": {ONE: gpu(), TWO: gpu(temperature=52)}})
    monkeypatch.setenv("NVML_WORLD", str(tmp_path / "world.json"))
    async with platform(tmp_path, fleet=GpuFleet) as made:
        try:
            yield made
        finally:
            fleet: Any = made.controller.fleet.bare
            await fleet.stop_agent()


async def when(look: Callable[[], Awaitable[Any]]) -> Any:
    """What `look` finds, as soon as it finds something."""
    for _ in range(1500):
        if found := await look():
            return found
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")


async def device(made: Platform, name: str) -> dict[str, Any]:
    cluster = await made.client("alice").cluster()
    [found] = [d for d in cluster["devices"] if d["id"] == name]
    return dict(found)


async def reported(made: Platform, name: str = "cuda:0") -> dict[str, Any]:
    """The device once its figures are there."""

    async def look() -> Any:
        found = await device(made, name)
        return found if found["health"]["temperature_c"] is not None else None

    return dict(await when(look))


async def until_drained(made: Platform, name: str = "cuda:0") -> str:
    async def look() -> Any:
        return (await device(made, name))["drained"]

    return str((await when(look))["reason"])


async def holder(made: Platform, tmp_path: Path) -> str:
    """A session whose process holds a device."""
    paths = [str(SUPPORT.parent), *os.environ.get("PYTHONPATH", "").split(":")]
    launch = {
        "mode": "capsule",
        "argv": [sys.executable, str(SUPPORT / "agent_worker.py"), "open", "need", "busy", "sleep"],
        "env": {"PYTHONPATH": ":".join(filter(None, paths)), "PATH": os.environ["PATH"]},
        "cwd": "/",
    }
    created = await made.client("alice").create_session(kind="interactive", launch=launch)
    session = str(created["id"])
    await made.state(session, "running")
    return session


@pytest.mark.asyncio
async def test_figures_are_in_the_cluster_document_and_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gpus(tmp_path, monkeypatch) as made:
        found = await reported(made)
        assert found["uuid"] == ONE
        assert found["health"] == {
            "present": True,
            "memory_used_bytes": 4_294_967_296,
            "memory_total_bytes": 150_754_820_096,
            "utilisation_percent": 37.0,
            "temperature_c": 41,
            "power_w": 112.504,
            "ecc_corrected": 0,
            "ecc_uncorrected": 0,
            "row_remap_pending": False,
            "clock_limits": [],
            "xids": [],
            "trouble": "",
        }
        text = made.services.metrics.text().decode()
        labels = f'{{device="cuda:0",node="local",uuid="{ONE}"}}'
        for line in (
            f"singularity_device_temperature_celsius{labels} 41.0",
            f"singularity_device_utilisation_ratio{labels} 0.37",
            f"singularity_device_power_watts{labels} 112.504",
            f"singularity_device_up{labels} 1.0",
            f"singularity_device_drained{labels} 0.0",
        ):
            assert line in text
        write(tmp_path / "world.json", {"gpus": {ONE: gpu(power={"error": 3}), TWO: gpu()}})

        async def refused() -> bool:
            return (await device(made, "cuda:0"))["health"]["power_w"] is None

        await when(refused)
        text = made.services.metrics.text().decode()
        assert f"singularity_device_power_watts{labels}" not in text
        assert f"singularity_device_temperature_celsius{labels} 41.0" in text


@pytest.mark.asyncio
async def test_a_lost_gpu_is_drained_and_its_session_goes_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gpus(tmp_path, monkeypatch) as made:
        await reported(made)
        session = await holder(made, tmp_path)
        assert (await made.controller.find(session)).devices == ("cuda:0",)
        lost = {"gpus": {ONE: gpu(lost=True), TWO: gpu()}, "events": [[ONE, 79]]}
        write(tmp_path / "world.json", lost)
        assert "fallen off the bus" in await until_drained(made)

        async def moved() -> bool:
            return (await made.controller.find(session)).devices == ("cuda:1",)

        await when(moved)
        history = await made.client("alice").history(session)
        [line] = [h for h in history if h["rule"] == "device.drained" and h["state"] != "running"][
            :1
        ]
        assert line["reason"].startswith("leaves cuda:0, which was drained (")
        found = await device(made, "cuda:0")
        assert found["drained"]["by"] is None
        assert [x["code"] for x in found["health"]["xids"]] == [79]
        # A new service knows it still; so nothing is started on it.
        await made.stop()
        await made.start()
        await made.ready()
        assert "fallen off the bus" in await until_drained(made)
        with pytest.raises(Forbidden, match="takes an administrator"):
            await made.client("alice").return_device("local", "cuda:0")
        done = await made.client("admin").return_device("local", "cuda:0")
        assert done["drained"] is None
        # Acknowledged: it stays returned although it still says the same.
        reports = made.controller.state.nodes["local"]
        before = reports.health["cuda:0"]

        async def looked_again() -> bool:
            return reports.health["cuda:0"] is not before

        await when(looked_again)
        assert (await device(made, "cuda:0"))["drained"] is None


@pytest.mark.asyncio
async def test_uncorrected_memory_errors_drain_and_an_absent_driver_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gpus(tmp_path, monkeypatch) as made:
        await reported(made, "cuda:1")
        write(tmp_path / "world.json", {"gpus": {ONE: gpu(), TWO: gpu(ecc=[9, 1])}})
        reason = await until_drained(made, "cuda:1")
        assert reason == "1 memory error that could not be corrected (ECC)"
        assert (await device(made, "cuda:0"))["drained"] is None


@pytest.mark.asyncio
async def test_without_a_driver_the_reason_is_told_and_devices_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "none.json", {"init": 12, "gpus": {}})
    async with gpus(tmp_path, monkeypatch) as made:
        fleet: Any = made.controller.fleet.bare
        await fleet.stop_agent()
        monkeypatch.setenv("NVML_WORLD", str(tmp_path / "none.json"))
        await fleet.start()

        async def told() -> str:
            return str((await device(made, "cuda:0"))["health"]["trouble"])

        assert "NVML Shared Library Not Found" in await when(told)
        session = await holder(made, tmp_path)
        assert (await made.controller.find(session)).devices == ("cuda:0",)


@pytest.mark.asyncio
async def test_an_administrator_drains_a_device_and_returns_it(tmp_path: Path) -> None:
    async with platform(tmp_path) as made:
        session = await made.holder()
        admin, alice = made.client("admin"), made.client("alice")
        with pytest.raises(Forbidden):
            await alice.drain("local", "cpu:0", "mine")
        for node, name in (("local", "cpu:9"), ("moon", "cpu:0")):
            with pytest.raises(NotFound, match="there is no device"):
                await admin.drain(node, name)
        with pytest.raises(NotFound):
            await admin.drain("local", "..")
        done = await admin.drain("local", "cpu:0", "new fan")
        drained = done["drained"]
        assert (drained["by"], drained["reason"]) == ("root", "new fan")
        again = await admin.drain("local", "cpu:0", "new fan and dust")
        assert again["drained"]["reason"] == "new fan and dust"

        async def moved() -> bool:
            view = await made.controller.find(session)
            return view.word == "running" and view.devices == ("cpu:1",)

        await when(moved)
        park = next(p for method, p in made.agent.calls if method == "device.park")
        assert "force" not in park
        await admin.drain("local", "cpu:1")
        await when(lambda: waits(made, session))
        why = await alice.why(session)
        assert "drained: cpu:0, cpu:1" in why["sentence"]
        await admin.return_device("local", "cpu:0")
        await when(lambda: holds(made, session, "cpu:0"))
        with pytest.raises(Conflict, match="is not drained"):
            await admin.return_device("local", "cpu:0")


async def waits(made: Platform, session: str) -> bool:
    return (await made.controller.find(session)).device_state.value == "waiting"


async def holds(made: Platform, session: str, name: str) -> bool:
    return (await made.controller.find(session)).devices == (name,)
