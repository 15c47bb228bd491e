"""Streams and events of `torch.cuda`.

A virtual device has one queue and executes in order, so a stream is a name, an event is a place in
the queue, and waiting for one on the device needs nothing. Copies between virtual devices go
through the worker, which makes them wait for each other.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from singularity_proxy.worker.native import native

LOWEST_PRIORITY, GREATEST_PRIORITY = 0, -5
"""As CUDA has them; a queue has one order, so they change nothing."""


def stream_base(torch_c: ModuleType) -> type:
    """What becomes `torch._C._CudaStreamBase`."""

    class _CudaStreamBase(torch_c.Stream):  # type: ignore[misc,name-defined]
        def __new__(
            cls,
            priority: int = 0,
            stream_id: int | None = None,
            device_index: int | None = None,
            device_type: int | None = None,
            stream_ptr: int | None = None,
            **_: Any,
        ) -> Any:
            if stream_ptr:
                raise RuntimeError(
                    "A stream of another library is not supported on a proxied device: no library "
                    "in this process has a device of its own; use torch.cuda.Stream()"
                )
            if stream_id is not None:
                stream = torch_c.Stream.__new__(
                    cls, stream_id=stream_id, device_index=device_index, device_type=device_type
                )
            else:
                stream = torch_c.Stream.__new__(
                    cls, device=f"cuda:{native.current_device()}", priority=priority
                )
            stream._priority = min(max(priority, GREATEST_PRIORITY), LOWEST_PRIORITY)
            return stream

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        @property
        def priority(self) -> int:
            return int(self._priority)

        @classmethod
        def priority_range(cls) -> tuple[int, int]:
            return LOWEST_PRIORITY, GREATEST_PRIORITY

    return _CudaStreamBase


def event_base(torch_c: ModuleType) -> type:
    """What becomes `torch._C._CudaEventBase`: torch's own event, whose parts come from our device
    guard. Its elapsed_time refuses every subclass, so that one is our own."""

    class _CudaEventBase(torch_c.Event):  # type: ignore[misc,name-defined]
        def __new__(
            cls,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> Any:
            if interprocess:
                raise RuntimeError(
                    "interprocess events are not supported on a proxied device: "
                    "synchronize before handing data to another process"
                )
            event = torch_c.Event.__new__(
                cls,
                device=f"cuda:{native.current_device()}",
                enable_timing=enable_timing,
                blocking=blocking,
            )
            event.enable_timing = enable_timing
            return event

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        @property
        def cuda_event(self) -> int:
            return int(self.event_id)

        def elapsed_time(self, end: Any) -> float:
            """Milliseconds of the proxy's clock, which stands still while no device is attached."""
            if not (self.enable_timing and getattr(end, "enable_timing", True)):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            return float(native.elapsed_between(self.event_id, end.event_id))

        def ipc_handle(self) -> bytes:
            raise RuntimeError("interprocess events are not supported on a proxied device")

        @classmethod
        def from_ipc_handle(cls, *_: Any) -> Any:
            raise RuntimeError("interprocess events are not supported on a proxied device")

    return _CudaEventBase


def names(torch_c: ModuleType) -> dict[str, Any]:
    """What `torch_c` puts into `torch._C`."""

    def index_of(device: int) -> int:
        return int(native.current_device()) if device < 0 else device

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        native.exchange_device(device_index)
        native.set_stream(device_index, stream_id)

    return {
        "_CudaStreamBase": stream_base(torch_c),
        "_CudaEventBase": event_base(torch_c),
        "_cuda_getCurrentStream": lambda device: (native.stream_of(device), index_of(device), 1),
        "_cuda_getDefaultStream": lambda device: (0, index_of(device), 1),
        "_cuda_getCurrentRawStream": native.stream_of,
        "_cuda_setStream": set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: False,
    }
