"""Timers in a process image: a periodic timerfd that has rung and was not read yet.

The kernel winds such a timer up again when it is read, and says until then that no time is left.
CRIU takes that for a timer that is off. So in the image its next period begins when it comes back.
"""

from __future__ import annotations

from .format import (
    BYTES,
    VARINT,
    change_image,
    change_messages,
    encode_message,
    encode_number,
    fields,
)

_FILES = "files.img"
_TIMER = 12
"""Field of a `file_entry`: it is a timerfd. Below: fields of that `timerfd_entry`."""
_TICKS, _SECONDS, _NANOSECONDS, _EVERY_SECONDS, _EVERY_NANOSECONDS = 5, 7, 8, 9, 10


def wind_up(folder: str) -> None:
    """Change the image in `folder` so that periodic timers which have rung ring again. Raises
    `ImageFailed` when it is not the image that is expected."""
    change_image(folder, _FILES, "files", lambda data: change_messages(data, _changed))


def _changed(entry: bytes) -> bytes:
    return b"".join(
        encode_message(_TIMER, _wound_up(one.value))
        if one.number == _TIMER and one.kind == BYTES
        else one.raw
        for one in fields(entry)
    )


def _wound_up(timer: bytes) -> bytes:
    values = {f.number: f.number_value for f in fields(timer) if f.kind == VARINT}
    every = values[_EVERY_SECONDS], values[_EVERY_NANOSECONDS]
    if not values[_TICKS] or values[_SECONDS] or values[_NANOSECONDS] or every == (0, 0):
        return timer
    new = dict(zip((_SECONDS, _NANOSECONDS), every, strict=True))
    return b"".join(
        encode_number(f.number, new[f.number]) if f.number in new else f.raw for f in fields(timer)
    )
