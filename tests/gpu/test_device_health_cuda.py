"""What a real GPU says of itself through NVML, as the node agent reads it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from singularity_scheduler.agent.devices.nvml import NvmlReader
from singularity_scheduler.agent.devices.probe import probe_devices
from singularity_scheduler.core.operations.health import faults
from singularity_scheduler.service.api.translate import device_health

pytestmark = pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs an NVIDIA GPU")


def test_every_device_that_torch_finds_is_found_and_well(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    devices = asyncio.run(probe_devices("cuda", 0, 1, str(tmp_path)))
    assert all(device["uuid"].startswith("GPU-") for device in devices)
    reader = NvmlReader({d["id"]: d["uuid"] for d in devices})
    for device, report in zip(devices, device_health(reader.read()), strict=True):
        assert report.present
        assert report.memory_total_bytes is not None
        assert report.memory_total_bytes >= device["capacity_bytes"]
        assert report.memory_used_bytes is not None
        assert 0 <= report.memory_used_bytes <= report.memory_total_bytes
        assert report.utilisation_percent is not None
        assert 0 <= report.utilisation_percent <= 100
        assert report.temperature_c is not None
        assert 0 < report.temperature_c < 100
        assert report.power_w is None or report.power_w > 0
        assert faults(report, 0.0) == []


def test_memory_in_use_is_seen(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    torch = pytest.importorskip("torch")
    [device, *_] = asyncio.run(probe_devices("cuda", 1, 1, str(tmp_path)))
    reader = NvmlReader({device["id"]: device["uuid"]})
    before = reader.read()[0]["memory_used_bytes"]
    kept = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda:0")
    assert reader.read()[0]["memory_used_bytes"] >= before + kept.nbytes
