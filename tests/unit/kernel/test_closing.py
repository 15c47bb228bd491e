"""A kernel whose session somebody closed is not started again; one that died is."""

from __future__ import annotations

import asyncio
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import traitlets
from singularity_kernel.server.closing import SessionRestarter, is_closed
from singularity_scheduler.core.reasons import of_runs
from singularity_scheduler.core.reasons.reason import Reason, because, to_json

CLOSED = because("closed", by="operator", why="")
EXITED = because("exited", exit_code=-9, sentence="its process was ended by signal 9")


def document(reason: Reason) -> dict[str, Any]:
    """The document of a session that has ended with this reason."""
    told = to_json(reason)
    return {"id": "s1", "reason_code": told["code"], "reason_args": told["args"], "reason": "-"}


@pytest.mark.parametrize("after", [CLOSED, because("cancelled", by="ada", why="")], ids=str)
def test_a_session_was_closed_whatever_became_of_its_checkpoints(after: Reason) -> None:
    for reason in (after, of_runs.ended_not_kept(after, None), of_runs.ended_part(after)):
        assert is_closed(document(reason))


def test_a_session_that_ended_by_itself_was_not_closed() -> None:
    for reason in (EXITED, of_runs.ended_not_kept(EXITED, None)):
        assert not is_closed(document(reason))
    assert not is_closed({"id": "s1"}), "a scheduler that gives no codes"


class Restarts:
    """A kernel manager, as restarters use it, of a kernel that has ended."""

    def __init__(self, end: dict[str, Any] | None) -> None:
        self.provisioner = SimpleNamespace(end=end, get_stable_start_time=lambda recommended: 1.0)
        self.shutting_down, self.alive, self.restarted = False, False, 0

    async def is_alive(self) -> bool:
        return self.alive

    async def restart_kernel(self, **_: Any) -> None:
        self.restarted += 1


class Restarter(SessionRestarter):
    kernel_manager = traitlets.Any()


@pytest.mark.parametrize(
    ("reason", "restarted"), [(CLOSED, 0), (of_runs.ended_not_kept(EXITED, None), 1), (None, 1)]
)
def test_what_is_started_again(reason: Reason | None, restarted: int) -> None:
    manager, told = Restarts(document(reason) if reason else None), list[str]()
    restarter = Restarter(kernel_manager=manager)
    for event in ("restart", "dead"):
        restarter.add_callback(functools.partial(told.append, event), event)
    asyncio.run(restarter.poll())
    assert (manager.restarted, told) == (restarted, ["restart"] if restarted else ["dead"])
