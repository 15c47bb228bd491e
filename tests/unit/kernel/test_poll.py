"""When a kernel counts as ended: `poll` by what was known last and what was answered then."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import pytest
from singularity_kernel.provision.late_end import is_unknown
from singularity_kernel.provision.provisioner import Mode, SingularityProvisioner
from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.errors import Forbidden, NotFound, SingularityError, Unavailable
from singularity_scheduler.client.problems import to_error

SESSION = "0123456789ab"

Answer = dict[str, Any] | SingularityError


class Service:
    """Answers `get_session` with what the test says, in order; the last answer again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.ends: list[str] = []

    def _next(self) -> dict[str, Any]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, SingularityError):
            raise answer
        return answer

    async def get_session(self, session: str) -> dict[str, Any]:
        return self._next()

    async def connection(self, session: str) -> dict[str, Any]:
        raise NotFound("it has none", session=session)

    async def end_session(self, session: str, reason: str, grace_s: float) -> dict[str, Any]:
        self.ends.append(reason)
        return self._next()


def document(state: str = "live", epoch: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": SESSION, "process_state": state, "epoch": epoch, "exit_code": None, **more}


def provisioner(*answers: Answer, pid: int | None = None) -> SingularityProvisioner:
    """One that has just started its session, as process `pid`."""
    made = SingularityProvisioner(kernel_id="k")
    made.mode, made.session_id, made.pid, made._epoch = Mode.SESSION, SESSION, pid, 1
    made._running = True
    made._service = Service(*answers)  # type: ignore[assignment]
    return made


def polled(made: SingularityProvisioner) -> int | None:
    made._asked_at = float("-inf")
    return asyncio.run(made.poll())


GONE = ProcessIdentity(1, 1)
"""No process that there is: process 1 began at another time."""

SILENCES: dict[str, SingularityError] = {
    "no connection": Unavailable("connection refused"),
    "no answer in time": Unavailable("no answer within 60 s"),
    "502 of a proxy": to_error(502, "Bad Gateway", b"<html>"),
    "503 of the Hub": to_error(503, "Service Unavailable", b'{"status": 503, "message": "x"}'),
    "503 of a standby": to_error(503, "", b'{"error": "Unavailable", "detail": "it starts"}'),
    "500": to_error(500, "", b'{"error": "SingularityError", "detail": "the request failed"}'),
    "401": to_error(401, "", b'{"error": "Unauthenticated", "detail": "who are you?"}'),
    "403": Forbidden("you may not"),
    "404 of a proxy": to_error(404, "Not Found", b"no route"),
    "404 of an address": to_error(404, "", b'{"error": "NotFound", "detail": "nothing at /api"}'),
    "404 of an empty ledger": NotFound("there is no session", session=SESSION),
}

LAST: dict[str, list[dict[str, Any]]] = {
    "just started": [],
    "live here": [document()],
    "suspending": [document("suspending")],
    "suspended": [document(), document("suspended")],
    "suspended and back": [document(), document("suspended"), document(epoch=2)],
    "back without a poll in between": [document(), document(epoch=3)],
}


@pytest.mark.parametrize("silence", SILENCES.values(), ids=SILENCES.keys())
@pytest.mark.parametrize("last", LAST.values(), ids=LAST.keys())
def test_no_silence_is_an_end(last: list[dict[str, Any]], silence: SingularityError) -> None:
    """Whatever was known, and although the process that was seen first is gone."""
    made = provisioner(*last, silence)
    for answer in last:
        assert polled(made) is None, answer
        made._process = made._process or GONE
    for _ in range(20):
        assert polled(made) is None
    assert made._exit_code is None
    made._service = Service(document("completed", exit_code=3))  # type: ignore[assignment]
    assert polled(made) == 3, "the scheduler has said so"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (document("live"), None),
        (document("queued"), None),
        (document("starting"), None),
        (document("suspending"), None),
        (document("suspended"), None),
        (document("resuming"), None),
        (document("a state of a later version"), None),
        ({"process_state": "failed"}, None),  # of nobody
        ({}, None),
        (document("completed"), 0),
        (document("completed", exit_code=0), 0),
        (document("failed"), 1),
        (document("failed", exit_code=-9), -9),
        (document("cancelled"), 1),
    ],
)
def test_an_answer_decides(answer: dict[str, Any], code: int | None) -> None:
    assert polled(provisioner(answer)) == code


def test_a_process_is_forgotten_with_every_new_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has the old number then is looked at anew, and belongs to the session or counts for
    nothing."""
    me = ProcessIdentity.of(os.getpid())
    ours = {"yes": True}
    monkeypatch.setattr(
        "singularity_kernel.provision.provisioner.local_process",
        lambda pid, session: me if pid and ours["yes"] else None,
    )
    made = provisioner(document(), document(epoch=2), document("suspended"), document(epoch=3))
    made.pid = os.getpid()
    polled(made)
    assert made._process == me
    ours["yes"] = False
    polled(made)
    assert made._process is None, "another epoch: it may be another process by now"
    ours["yes"] = True
    polled(made)
    assert (made._process, made.pid) == (None, None), "it has left"
    polled(made)
    assert made._process is None, "its old number says nothing of it"


@pytest.mark.parametrize(
    ("silence", "process", "code"),
    [
        ("no connection", GONE, 1),
        ("no connection", None, None),
        ("404 of a proxy", None, None),
        ("404 of an address", None, None),
        ("404 of an empty ledger", None, 1),
        ("401", None, None),
    ],
)
def test_once_its_end_was_asked_for_here_there_need_not_be_an_answer(
    silence: str, process: ProcessIdentity | None, code: int | None
) -> None:
    made = provisioner(SILENCES[silence])
    made._process, made._ending = process, True
    assert polled(made) == code


@pytest.mark.parametrize(
    ("name", "ended"),
    [("404 of an empty ledger", True), ("404 of a proxy", False), ("404 of an address", False)],
)
def test_an_end_is_repeated_until_the_scheduler_has_taken_it(
    name: str, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[str] = []
    monkeypatch.setattr(
        "singularity_kernel.provision.late_end.begin",
        lambda client, session, reason, log: late.append(reason),
    )
    made = provisioner(SILENCES[name])
    asyncio.run(made.cleanup())
    assert (made._exit_code is not None) is ended
    assert late == ([] if ended else ["shutdown of the kernel"])


def test_being_away_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    made = provisioner(Unavailable("gone"), Unavailable("gone"), document(), Unavailable("again"))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert polled(made) is None
    said = [r.message for r in caplog.records if "its state is unknown" in r.message]
    assert len(said) == 2


def test_only_a_session_that_is_named_is_unknown() -> None:
    assert is_unknown(SILENCES["404 of an empty ledger"], SESSION)
    assert not is_unknown(SILENCES["404 of an empty ledger"], "another one")
    assert not is_unknown(SILENCES["404 of an address"], SESSION)
    assert not is_unknown(SILENCES["503 of the Hub"], SESSION)
