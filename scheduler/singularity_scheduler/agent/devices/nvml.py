"""What NVIDIA's management library (NVML) says of the node's GPUs.

NVML is reached through the module `pynvml` of the package nvidia-ml-py, which is optional: without
it, or without a driver, there are no figures and the reason is told. Every call into it may take
seconds, and for ever when a GPU is ill, so `NvmlReader` is only used in a thread of its own
(`health` does that). Each figure is asked for by itself: what one card or driver does not know is
None, and the others are there.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

KEEP_XIDS = 16
"""How many of a GPU's newest driver errors are kept."""

_LIMITS = {
    "SwPowerCap": "power limit",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "software thermal slowdown",
    "HwThermalSlowdown": "hardware thermal slowdown",
    "HwPowerBrakeSlowdown": "power brake",
}
"""Reasons of NVML that keep clocks down, in words; idle and set clocks are no limits."""


class NvmlMissing(Exception):
    """There is no NVML here; the text says why, in one sentence."""


class _Gone(Exception):
    """The driver says that this GPU is no longer there."""


class NvmlReader:
    """`read` blocks. `uuids`: device id of the node -> the GPU's UUID ("" when torch tells none,
    then the index counts). `module` is `pynvml`, or what replays its answers in tests."""

    def __init__(self, uuids: dict[str, str], module: Any = None) -> None:
        self._uuids = uuids
        self._module = module
        self._handles: dict[str, Any] = {}
        self._unfound: dict[str, str] = {}
        """Devices that NVML never knew, and what it says: no figures, but no sign of a fault."""
        self._xids: dict[str, deque[tuple[int, float]]] = {}
        self._events: Any = None
        self._started = False

    def read(self) -> list[dict[str, Any]]:
        """One report per device (`service.ports.AgentDeviceHealth`). Raises `NvmlMissing`."""
        self._start()
        self._take_events()
        return [self._report(device) for device in self._uuids]

    # -- set-up -----------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._started:
            return
        if self._module is None:
            try:
                self._module = importlib.import_module("pynvml")
            except ImportError:
                raise NvmlMissing(
                    "the figures of this GPU are not known: install nvidia-ml-py where the node "
                    "agent runs"
                ) from None
        nv = self._module
        try:
            nv.nvmlInit()
        except nv.NVMLError as error:
            raise NvmlMissing(f"NVML does not start ({_text(error)}): see nvidia-smi") from None
        self._started = True
        try:
            self._events = nv.nvmlEventSetCreate()
        except nv.NVMLError:
            self._events = None  # then errors are only seen by what they do to the figures
        for device in self._uuids:
            self._find(device)

    def _find(self, device: str) -> None:
        """Look the device's handle up and listen to its errors."""
        nv, uuid = self._module, self._uuids[device]
        try:
            if uuid:
                handle = nv.nvmlDeviceGetHandleByUUID(uuid)
            else:
                handle = nv.nvmlDeviceGetHandleByIndex(int(device.partition(":")[2]))
        except nv.NVMLError as error:
            self._unfound[device] = _text(error)
            return
        self._handles[device] = handle
        self._unfound.pop(device, None)
        if self._events is not None:
            try:
                nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, self._events)
            except nv.NVMLError:
                pass  # this card reports no errors

    # -- reading ----------------------------------------------------------------------------------

    def _take_events(self) -> None:
        """Take the driver errors since the last time; they are only told once."""
        nv = self._module
        addresses = {_address(handle): device for device, handle in self._handles.items()}
        for _ in range(64 if self._events is not None else 0):
            try:
                event = nv.nvmlEventSetWait(self._events, 1)
            except nv.NVMLError as error:
                if error.value == nv.NVML_ERROR_GPU_IS_LOST:
                    continue
                return  # NVML_ERROR_TIMEOUT: there are no more
            device = addresses.get(_address(event.device))
            if device is not None and event.eventType & nv.nvmlEventTypeXidCriticalError:
                kept = self._xids.setdefault(device, deque(maxlen=KEEP_XIDS))
                kept.append((int(event.eventData), time.time()))

    def _report(self, device: str) -> dict[str, Any]:
        if device not in self._handles:
            self._find(device)
        report: dict[str, Any] = {"id": device, "uuid": self._uuids[device], "present": True}
        handle = self._handles.get(device)
        if handle is None:
            said = self._unfound[device]
            return report | {"trouble": f"NVML does not know this GPU ({said}): see nvidia-smi"}
        try:
            report |= self._figures(handle)
        except _Gone:
            report |= {"present": False, "trouble": "the driver no longer reaches this GPU"}
        report["xids"] = [[code, at] for code, at in self._xids.get(device, ())]
        return report

    def _figures(self, handle: Any) -> dict[str, Any]:
        nv = self._module
        memory = self._ask(nv.nvmlDeviceGetMemoryInfo, handle)
        rates = self._ask(nv.nvmlDeviceGetUtilizationRates, handle)
        power = self._ask(nv.nvmlDeviceGetPowerUsage, handle)
        power_limit = self._ask(nv.nvmlDeviceGetEnforcedPowerLimit, handle)
        rows = self._ask(nv.nvmlDeviceGetRemappedRows, handle)
        ecc = {
            name: self._ask(nv.nvmlDeviceGetTotalEccErrors, handle, kind, nv.NVML_VOLATILE_ECC)
            for name, kind in (
                ("ecc_corrected", nv.NVML_MEMORY_ERROR_TYPE_CORRECTED),
                ("ecc_uncorrected", nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            )
        }
        return {
            "memory_used_bytes": memory and int(memory.used),
            "memory_total_bytes": memory and int(memory.total),
            "utilisation_percent": None if rates is None else float(rates.gpu),
            "temperature_c": self._ask(
                nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU
            ),
            "temperature_limit_c": self._ask(
                nv.nvmlDeviceGetTemperatureThreshold,
                handle,
                nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
            ),
            "power_w": None if power is None else power / 1000,
            "power_limit_w": None if power_limit is None else power_limit / 1000,
            **ecc,
            "row_remap_pending": None if rows is None else bool(rows[2]),
            "row_remap_failed": None if rows is None else bool(rows[3]),
            "clock_limits": self._clock_limits(handle),
        }

    def _clock_limits(self, handle: Any) -> list[str]:
        nv = self._module
        for prefix, ask in (
            ("nvmlClocksEventReason", "nvmlDeviceGetCurrentClocksEventReasons"),
            ("nvmlClocksThrottleReason", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        ):
            function = getattr(nv, ask, None)
            bits = self._ask(function, handle) if function else None
            if bits is not None:
                return [
                    text for name, text in _LIMITS.items() if bits & getattr(nv, prefix + name, 0)
                ]
        return []

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """One answer; None when this card, driver or user cannot have it. Raises `_Gone`."""
        nv = self._module
        try:
            return function(*arguments)
        except nv.NVMLError as error:
            if error.value in (nv.NVML_ERROR_GPU_IS_LOST, nv.NVML_ERROR_RESET_REQUIRED):
                raise _Gone from None
            return None


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _text(error: Exception) -> str:
    return str(error).rstrip(".")
