"""What the agent reads from NVML, answers replayed: every figure, every refusal, and silence."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from singularity_scheduler.agent.devices import health
from singularity_scheduler.agent.devices.health import DeviceHealth
from singularity_scheduler.agent.devices.nvml import NvmlMissing, NvmlReader
from support import nvml_replies
from support.nvml_replies import gpu, write

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    path = tmp_path / "world.json"
    write(path, {"gpus": {A: gpu(), B: gpu(temperature=55)}})
    return path


@pytest.fixture
def reader(world: Path) -> NvmlReader:
    return NvmlReader({"cuda:0": A, "cuda:1": B}, nvml_replies.install(str(world)))


def test_the_figures_of_healthy_gpus(reader: NvmlReader) -> None:
    first, second = reader.read()
    assert first == {
        "id": "cuda:0",
        "uuid": A,
        "present": True,
        "memory_used_bytes": 4_294_967_296,
        "memory_total_bytes": 150_754_820_096,
        "utilisation_percent": 37.0,
        "temperature_c": 41,
        "temperature_limit_c": 95,
        "power_w": 112.504,
        "power_limit_w": 700.0,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "row_remap_pending": False,
        "row_remap_failed": False,
        "clock_limits": [],
        "xids": [],
    }
    assert (second["id"], second["temperature_c"]) == ("cuda:1", 55)


@pytest.mark.parametrize(
    ("figure", "names"),
    [
        ("memory", ["memory_used_bytes", "memory_total_bytes"]),
        ("utilisation", ["utilisation_percent"]),
        ("temperature", ["temperature_c"]),
        ("slowdown", ["temperature_limit_c"]),
        ("power", ["power_w"]),
        ("power_limit", ["power_limit_w"]),
        ("ecc", ["ecc_corrected", "ecc_uncorrected"]),
        ("rows", ["row_remap_pending", "row_remap_failed"]),
    ],
)
@pytest.mark.parametrize("code", [3, 4, 13, 999])
def test_a_refused_figure_is_none_and_the_others_are_there(
    world: Path, reader: NvmlReader, figure: str, names: list[str], code: int
) -> None:
    write(world, {"gpus": {A: gpu(**{figure: {"error": code}}), B: gpu()}})
    report = reader.read()[0]
    assert {n for n, value in report.items() if value is None} == set(names)
    assert report["present"]


def test_errors_are_told_once_by_nvml_and_kept(world: Path, reader: NvmlReader) -> None:
    write(world, {"gpus": {A: gpu(), B: gpu()}, "events": [[B, 31]]})
    assert [[x[0] for x in r["xids"]] for r in reader.read()] == [[], [31]]
    write(
        world,
        {
            "gpus": {A: gpu(ecc=[5, 2], rows=[0, 1, 1, 1]), B: gpu(clocks=0x40 | 0x4 | 0x1)},
            "events": [[B, 31], [A, 48], [A, 94]],
        },
    )
    first, second = reader.read()
    assert [x[0] for x in first["xids"]] == [48, 94]
    assert [x[0] for x in second["xids"]] == [31]
    assert (first["ecc_corrected"], first["ecc_uncorrected"]) == (5, 2)
    assert (first["row_remap_pending"], first["row_remap_failed"]) == (True, True)
    assert second["clock_limits"] == ["power limit", "hardware thermal slowdown"]


def test_a_lost_gpu_is_not_present_and_may_come_back(world: Path, reader: NvmlReader) -> None:
    reader.read()
    write(world, {"gpus": {A: gpu(lost=True), B: gpu()}, "events": [[A, 79]]})
    first, second = reader.read()
    assert (first["present"], [x[0] for x in first["xids"]]) == (False, [79])
    assert first["trouble"] == "the driver no longer reaches this GPU"
    assert second["present"]
    write(world, {"gpus": {A: gpu(), B: gpu()}, "events": [[A, 79]]})
    assert reader.read()[0]["present"]


def test_a_gpu_that_nvml_never_knew_is_not_lost_and_is_looked_for(
    world: Path, reader: NvmlReader
) -> None:
    write(world, {"gpus": {B: gpu()}})
    first, second = reader.read()
    assert (first["present"], second["present"]) == (True, True)
    assert "NVML does not know this GPU (Not Found)" in first["trouble"]
    assert "trouble" not in second
    write(world, {"gpus": {A: gpu(), B: gpu()}})
    first = reader.read()[0]
    assert (first["temperature_c"], "trouble" in first) == (41, False)
    write(world, {"gpus": {B: gpu()}})
    assert [r["present"] for r in reader.read()] == [False, True]


def test_a_card_that_reports_no_errors_has_figures(world: Path, reader: NvmlReader) -> None:
    write(world, {"gpus": {A: gpu(events={"error": 3}), B: gpu()}})
    assert reader.read()[0]["temperature_c"] == 41


@pytest.mark.parametrize(
    ("code", "text"), [(12, "NVML Shared Library Not Found"), (9, "Driver Not Loaded")]
)
def test_no_driver_is_one_sentence_and_is_tried_again(
    world: Path, reader: NvmlReader, code: int, text: str
) -> None:
    write(world, {"init": code, "gpus": {}})
    with pytest.raises(NvmlMissing, match=text):
        reader.read()
    write(world, {"gpus": {A: gpu(), B: gpu()}})
    assert reader.read()[0]["present"]


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlMissing, match="install nvidia-ml-py"):
        NvmlReader({"cuda:0": A}).read()


@pytest.mark.asyncio
async def test_a_round_that_fails_is_logged_and_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "FIRST_LOOK_S", 0.0)
    told: list[Any] = []
    watch = DeviceHealth(node(emit=lambda *_, devices, sessions: told.append(devices)), 0.001)
    report = [{"id": "cuda:0"}]
    rounds = iter((None, report))

    async def look() -> Any:
        if found := next(rounds, report):
            return found
        raise KeyError("x")

    monkeypatch.setattr(watch, "look", look)
    task = asyncio.ensure_future(watch.run())
    for _ in range(200):
        if told:
            break
        await asyncio.sleep(0.005)
    task.cancel()
    assert told[0] == report
    assert "could not be told" in caplog.text


def node(**more: Any) -> Any:
    device = {"id": "cuda:0", "type": "cuda", "capacity_bytes": 8 << 30, "uuid": A}
    return SimpleNamespace(devices=[device], sessions={}, **more)


@pytest.mark.asyncio
async def test_an_nvml_that_hangs_is_told_as_silence_and_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "ANSWER_S", 0.05)
    go_on = threading.Event()
    watch = DeviceHealth(node(), 1.0)

    class Hanging:
        def read(self) -> list[dict[str, Any]]:
            go_on.wait(30)
            return [{"id": "cuda:0", "temperature_c": 40}]

    watch._reader = Hanging()  # type: ignore[assignment]
    [first] = await watch.look()
    [second] = await watch.look()
    assert first["memory_total_bytes"] == 8 << 30
    assert second["silent_s"] >= first["silent_s"] >= 0.0
    assert second["silent_s"] > 0
    go_on.set()
    for _ in range(200):
        [last] = await watch.look()
        if last["silent_s"] == 0:
            break
        await asyncio.sleep(0.01)
    assert (last["temperature_c"], last["silent_s"]) == (40, 0.0)


@pytest.mark.asyncio
async def test_no_figures_are_told_with_the_reason() -> None:
    watch = DeviceHealth(node(), 1.0)

    class Missing:
        def read(self) -> list[dict[str, Any]]:
            raise NvmlMissing("there is no driver")

    watch._reader = Missing()  # type: ignore[assignment]
    [report] = await watch.look()
    assert (report["trouble"], report["uuid"]) == ("there is no driver", A)


@pytest.mark.asyncio
async def test_a_reader_that_fails_in_a_way_nobody_foresaw_ends_nothing() -> None:
    watch = DeviceHealth(node(), 1.0)

    class Broken:
        def read(self) -> list[dict[str, Any]]:
            raise KeyError("x")

    watch._reader = Broken()  # type: ignore[assignment]
    [report] = await watch.look()
    assert report["trouble"] == "NVML could not be read ('x')"
