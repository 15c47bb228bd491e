"""Daemons in a process image: their session's leader has ended (a double fork after `setsid`).

CRIU brings a process of such a session back below a helper that ends at once, and so it would
become a child of pid 1, outside of what the next image holds. So in the image it leads its session
itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from .format import VARINT, change_image, change_messages, encode_number, fields, messages

_TREE = "pstree.img"
_PID, _PARENT, _GROUP, _SESSION = 1, 2, 3, 4
"""Fields of a `pstree_entry`."""


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    group: int
    session: int


def lead_own_sessions(folder: str) -> None:
    """Change the image in `folder` so that the first process of each session without a leader leads
    it. Raises `ImageFailed` when it is not the image that is expected."""
    change_image(folder, _TREE, "processes", _with_leaders)


def _with_leaders(data: bytes) -> bytes:
    leaders = _new_leaders([_read(message) for message in messages(data)])
    return change_messages(data, lambda message: _changed(message, leaders))


def _read(message: bytes) -> _Process:
    values = {f.number: f.number_value for f in fields(message) if f.kind == VARINT}
    return _Process(values[_PID], values[_PARENT], values[_GROUP], values[_SESSION])


def _new_leaders(processes: list[_Process]) -> dict[int, tuple[int, int]]:
    """Pid -> (its group, its session), of the processes that get others. Parents come first."""
    there = {one.pid for one in processes}
    sessions = {one.pid: one.session for one in processes}
    found: dict[int, tuple[int, int]] = {}
    for one in processes:
        if one.session in there or one.session == 0:
            continue
        leader = one.pid
        if sessions.get(one.parent) == one.session and one.parent in found:
            leader = found[one.parent][1]
        elif one.group in there and one.group != one.pid:
            continue  # in the group of a sibling: no leader of a session can be
        leads = one.pid == leader or one.group == one.session
        found[one.pid] = (leader if leads else one.group, leader)
    return found


def _changed(message: bytes, leaders: dict[int, tuple[int, int]]) -> bytes:
    pid = _read(message).pid
    if pid not in leaders:
        return message
    new = dict(zip((_GROUP, _SESSION), leaders[pid], strict=True))
    return b"".join(
        encode_number(f.number, new[f.number]) if f.number in new else f.raw
        for f in fields(message)
    )
