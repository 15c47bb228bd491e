"""What is asked for again while nobody answers is one thing, and is told truly when it is given
up."""

from __future__ import annotations

import pytest
from singularity_proxy.errors import Conflict, SingularityError, Unavailable, Unreached
from singularity_scheduler.client import repeat

pytestmark = pytest.mark.asyncio

LOST, AWAY, DONE = Unreached("lost"), Unavailable("away"), "done"


class Service:
    """Gives these answers one after the other, the last one for ever."""

    def __init__(self, *answers: SingularityError | str) -> None:
        self.answers = list(answers)
        self.keys: list[str] = []

    async def ask(self, key: str) -> str:
        self.keys.append(key)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, SingularityError):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat, "PAUSE_S", 0.001)


@pytest.mark.parametrize("only_if_lost", [False, True])
async def test_all_tries_have_one_key(only_if_lost: bool) -> None:
    service = Service(LOST, AWAY, LOST, DONE)
    done = await repeat.ask_until_answered(service.ask, 60.0, only_if_lost=only_if_lost)
    assert (done, len(service.keys), len(set(service.keys))) == (DONE, 4, 1)


async def test_a_service_that_is_away_is_waited_for_or_not() -> None:
    assert await repeat.ask_until_answered(Service(AWAY, DONE).ask, 60.0) == DONE
    service = Service(AWAY, DONE)
    with pytest.raises(Unavailable, match="away"):
        await repeat.ask_until_answered(service.ask, 60.0, only_if_lost=True)
    assert len(service.keys) == 1


@pytest.mark.parametrize("only_if_lost", [False, True])
async def test_a_try_that_was_lost_is_not_forgotten(only_if_lost: bool) -> None:
    with pytest.raises(Unreached, match="lost"):
        await repeat.ask_until_answered(Service(LOST, AWAY).ask, 0.05, only_if_lost=only_if_lost)


async def test_a_refusal_ends_it() -> None:
    service = Service(LOST, Conflict("no"), DONE)
    with pytest.raises(Conflict):
        await repeat.ask_until_answered(service.ask, 60.0)
    assert len(service.keys) == 2
