"""Replays what NVML answers: the functions of the real `pynvml` with the answers of a small world.

The world is a JSON file that a test writes and rewrites: ``{"init": code or 0, "gpus": {UUID:
{...}}, "events": [[UUID, xid], ...], "hang_s": seconds}``. A figure that is an object ``{"error":
code}`` is refused with that error of NVML, as a card does that does not know it; what is missing is
refused as not supported. The values of a healthy card are those of an H200 as NVIDIA documents
them (memory, limits), the ids and errors are the library's own.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HEALTHY: dict[str, Any] = {
    "memory": [150_754_820_096, 4_294_967_296],
    "utilisation": 37,
    "temperature": 41,
    "slowdown": 95,
    "power": 112_504,
    "power_limit": 700_000,
    "ecc": [0, 0],
    "rows": [0, 0, 0, 0],
    "clocks": 1,
}
"""Of one GPU: [total, used] bytes, %, °C, °C, mW, mW, [corrected, uncorrected], remapped rows
(corrected, uncorrected, pending, failed), clocks event reasons (1: idle)."""


def install(path: str) -> Any:
    """A copy of `pynvml` that answers from the world in the file `path`."""
    real = sys.modules.pop("pynvml", None)
    nv: Any = importlib.import_module("pynvml")
    del sys.modules["pynvml"]
    if real is not None:
        sys.modules["pynvml"] = real
    world = _World(Path(path), nv)
    for name in [n for n in dir(nv) if n.startswith("nvml") and callable(getattr(nv, n))]:
        if name[4].isupper() and not name.startswith(("nvmlEventType", "nvmlClocks")):
            setattr(nv, name, getattr(world, name, world.refuse))
    return nv


class _World:
    def __init__(self, path: Path, nv: Any) -> None:
        self._path = path
        self._nv = nv
        self._told = 0
        self._order: list[str] = []

    def _look(self) -> Any:
        world = json.loads(self._path.read_text())
        if world.get("hang_s"):
            time.sleep(world["hang_s"])
        return world

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._order:
            self._order.append(uuid)
        address = 0x1000 * (1 + self._order.index(uuid))
        return ctypes.cast(ctypes.c_void_p(address), self._nv.c_nvmlDevice_t)

    def _uuid(self, handle: Any) -> str:
        address = ctypes.cast(handle, ctypes.c_void_p).value or 0
        return self._order[address // 0x1000 - 1]

    def _figure(self, handle: Any, name: str) -> Any:
        gpu = self._look()["gpus"].get(self._uuid(handle))
        if gpu is None or gpu.get("lost"):
            raise self._nv.NVMLError(self._nv.NVML_ERROR_GPU_IS_LOST)
        value = gpu.get(name, {"error": self._nv.NVML_ERROR_NOT_SUPPORTED})
        if isinstance(value, dict):
            raise self._nv.NVMLError(value["error"])
        return value

    def refuse(self, *_: Any) -> Any:
        raise self._nv.NVMLError(self._nv.NVML_ERROR_FUNCTION_NOT_FOUND)

    # -- the functions the agent uses -------------------------------------------------------------

    def nvmlInit(self) -> None:
        if code := self._look().get("init", 0):
            raise self._nv.NVMLError(code)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        if uuid not in self._look()["gpus"]:
            raise self._nv.NVMLError(self._nv.NVML_ERROR_NOT_FOUND)
        return self._handle(uuid)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self._handle(list(self._look()["gpus"])[index])

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        total, used = self._figure(handle, "memory")
        return self._nv.c_nvmlMemory_t(total=total, used=used, free=total - used)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return self._nv.c_nvmlUtilization_t(gpu=self._figure(handle, "utilisation"), memory=3)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> Any:
        assert sensor == self._nv.NVML_TEMPERATURE_GPU
        return self._figure(handle, "temperature")

    def nvmlDeviceGetTemperatureThreshold(self, handle: Any, which: int) -> Any:
        assert which == self._nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return self._figure(handle, "slowdown")

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> Any:
        return self._figure(handle, "power")

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> Any:
        return self._figure(handle, "power_limit")

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int) -> Any:
        assert counter == self._nv.NVML_VOLATILE_ECC
        return self._figure(handle, "ecc")[kind]

    def nvmlDeviceGetRemappedRows(self, handle: Any) -> Any:
        return tuple(self._figure(handle, "rows"))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> Any:
        return self._figure(handle, "clocks")

    def nvmlEventSetCreate(self) -> Any:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: Any, types: int, events: Any) -> None:
        assert types == self._nv.nvmlEventTypeXidCriticalError
        self._figure(handle, "events")

    def nvmlEventSetWait(self, events: Any, milliseconds: int) -> Any:
        told = self._look().get("events", [])
        if self._told >= len(told):
            raise self._nv.NVMLError(self._nv.NVML_ERROR_TIMEOUT)
        uuid, xid = told[self._told]
        self._told += 1
        return self._nv.c_nvmlEventData_t(
            device=self._handle(uuid),
            eventType=self._nv.nvmlEventTypeXidCriticalError,
            eventData=xid,
        )


def write(path: Path, world: dict[str, Any]) -> None:
    """Change the world at once: a reader sees all of it or nothing."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(world))
    os.replace(temporary, path)


def gpu(**changes: Any) -> dict[str, Any]:
    """A healthy GPU that is different in this."""
    return {**HEALTHY, "events": 1, **changes}
