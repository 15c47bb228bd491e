"""papermill's remote runs, with a service that is not always there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from singularity_kernel.batch import remote
from singularity_proxy.errors import Unavailable


class Service:
    """Answers no request to end a run but the last of `answers`."""

    def __init__(self, *answers: bool) -> None:
        self._answers = list(answers)
        self.ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def end_session(self, session: str, reason: str) -> None:
        if not self._answers.pop(0):
            raise Unavailable("the scheduler does not answer")
        self.ended.set_result({"process_state": "cancelled"})


def remote_run() -> remote.RemoteRun:
    run = object.__new__(remote.RemoteRun)
    run._session, run._result, run._seen = "5e1f", "/nowhere/out.ipynb", None
    return run


@pytest.mark.asyncio
async def test_a_run_is_ended_as_soon_as_the_service_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "LOOK_S", 0.01)
    asked, service = asyncio.Event(), Service(False, False, True)
    asked.set()
    await remote_run()._until(service.ended, asked, service)
    assert service.ended.result() == {"process_state": "cancelled"}


@pytest.mark.asyncio
async def test_who_cannot_end_a_run_reads_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LOOK_S", 0.01)
    monkeypatch.setattr(remote, "END_S", 0.0)
    asked, service = asyncio.Event(), Service(False)
    asked.set()
    with pytest.raises(Unavailable, match="the run goes on as session 5e1f, with its output in "):
        await remote_run()._until(service.ended, asked, service)
    assert service.ended.cancelled()
