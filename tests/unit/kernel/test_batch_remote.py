"""papermill's remote runs, with a service that is not always there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nbformat
import pytest
from singularity_kernel.batch import remote
from singularity_kernel.batch.running.stop import Stop
from singularity_proxy.errors import Unavailable, Unreached


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


@pytest.mark.parametrize("lost", [False, True])
def test_what_a_run_begins_with_stays_while_it_may_have_been_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    async def submitted(*_: Any) -> None:
        raise Unreached("it closed") if lost else Unavailable("the service is away")

    monkeypatch.setattr(remote.RemoteRun, "_follow", submitted)
    output = str(tmp_path / "out.ipynb")
    run = remote.RemoteRun(
        nbformat.v4.new_notebook(metadata={"papermill": {}}), "", output, "", False
    )
    with pytest.raises(Unavailable) as told:
        run.run(Stop(), False)
    assert ("may have been started" in told.value.message) is lost
    assert (len(list(tmp_path.glob(".papermill-*/in.ipynb"))) == 1) is lost
