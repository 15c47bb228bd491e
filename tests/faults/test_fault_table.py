"""Who is killed or gone, at which step of a checkpoint, a suspend or a resume: one table. Whatever
happens, the checkpoint from before can be used, nothing half-written is listed, the session goes on
or comes back with the same numbers, and what people are told says what became of it.

An uploader is a thread of the agent and dies with it, so it is its connection that is cut.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from singularity_proxy.checkpoint import steps
from singularity_proxy.checkpoint.stores.urls import open_store
from singularity_scheduler.agent.store import resumes, suspends
from support.agent import AgentBox
from support.agent_faults import Fault, Trial
from support.agent_trains import native_losses
from support.azurite import KEY, Azurite
from support.capsules import needs_criu
from support.matrix import some_of
from support.store_faults import FaultProxy

pytestmark = [needs_criu, pytest.mark.timeout(180)]

_SAVE = list(steps.SAVE)
_SUSPEND = [f"suspend.{name}" for name in suspends.STEPS]
_STAYS = ("suspend.copied", "suspend.thawed")
_LEAVES = ("suspend.recorded", "suspend.ended", "suspend.removed")
_RESUME = [f"resume.{name}" for name in resumes.STEPS]
_RESTORE = list(steps.RESTORE)
CHECKPOINT = [step for step in _SUSPEND if step not in _LEAVES] + _SAVE
SUSPEND = [step for step in _SUSPEND if step not in _STAYS] + _SAVE
RESUME = _RESUME + _RESTORE

TABLE: dict[str, dict[str, list[str]]] = {
    "agent": {"checkpoint": CHECKPOINT, "suspend": SUSPEND, "resume": RESUME},
    "service": {"checkpoint": CHECKPOINT, "suspend": SUSPEND, "resume": RESUME},
    "proxy": {"checkpoint": CHECKPOINT, "suspend": SUSPEND, "resume": ["resume.thawed"]},
    "criu": {
        "checkpoint": ["suspend.closed"],
        "suspend": ["suspend.closed"],
        "resume": ["resume.unpacked"],
    },
    "program": {
        "checkpoint": ["suspend.frozen", "suspend.device", "suspend.closed", "suspend.copied"],
        "suspend": ["suspend.frozen", "suspend.device", "suspend.closed", "suspend.dumped"],
    },
    "uploader": {"checkpoint": _SAVE, "suspend": _SAVE, "resume": ["resume.begun", *_RESTORE]},
    "store": {"checkpoint": _SAVE, "suspend": _SAVE, "resume": ["resume.begun", *_RESTORE]},
}
"""Who -> what is being done -> the steps at which it strikes."""

CRIU_AFTER_S = (0.0, 0.05, 0.15, 0.4)
FAULTS = [
    Fault(who, verb, step, after_s)
    for who, verbs in TABLE.items()
    for verb, found in verbs.items()
    for step in found
    for after_s in (CRIU_AFTER_S if who == "criu" else (0.0,))
]
_LOCAL = some_of((fault for fault in FAULTS if fault.who not in ("uploader", "store")), 7)
_AZURE = some_of((fault for fault in FAULTS if fault.who in ("uploader", "store")), 3)


STEPS = 3000
"""More than a session trains while it is struck once at each step of a verb."""


@pytest.fixture(scope="module")
def reference() -> dict[int, str]:
    return native_losses(STEPS)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def box() -> AsyncIterator[AgentBox]:
    options = ("--NodeAgent.lease_ttl_s=600",)
    async with AgentBox(*options, script="agent_with_fault.py", warm=1) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def azure() -> AsyncIterator[tuple[AgentBox, str, FaultProxy]]:
    """An agent with Azurite as its store, the store's own address, and what is between them."""
    with (
        pytest.MonkeyPatch.context() as environment,
        Azurite() as server,
        FaultProxy(server.port) as line,
    ):
        environment.setenv("AZURE_STORAGE_KEY", KEY)
        direct = f"{server.url}/faults/agent"
        open_store(direct, **server.options).close()
        url = direct.replace(f":{server.port}/", f":{line.port}/")
        options = (f"--NodeAgent.checkpoint_store={url}", "--NodeAgent.lease_ttl_s=600")
        async with AgentBox(*options, script="agent_with_fault.py", warm=1) as running:
            yield running, direct, line


class Trials:
    """The session that is struck at one step of a verb after the other, by one kind of fault. The
    next kind begins with a new session, as does a fault after one that failed. After the last fault
    of each kind in `faults` the session goes back to what it was before all of them."""

    def __init__(self, make: Callable[[], Trial], faults: list[Fault]) -> None:
        self._make = make
        self._last = {fault.kind: fault for fault in faults}
        self._trial: Trial | None = None
        self._kind = ""

    async def run(self, fault: Fault) -> None:
        """Strike once; all must hold."""
        if self._kind != fault.kind:
            await self.finish()
        if self._trial is None:
            self._trial, self._kind = self._make(), fault.kind
            await self._trial.begin()
        try:
            await self._trial.run(fault)
        except BaseException:
            trial, self._trial = self._trial, None
            await trial.drop()
            raise
        if fault == self._last[fault.kind]:
            await self.finish()

    async def finish(self) -> None:
        """Have the session, if there is one, go back to what it was before all faults."""
        trial, self._trial = self._trial, None
        if trial is not None:
            await trial.finish()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def local_trials(box: AgentBox, reference: dict[int, str]) -> AsyncIterator[Trials]:
    trials = Trials(lambda: Trial(box, reference, (str(box.root / "state" / "store"), {})), _LOCAL)
    yield trials
    await trials.finish()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def azure_trials(
    azure: tuple[AgentBox, str, FaultProxy], reference: dict[int, str]
) -> AsyncIterator[Trials]:
    box, direct, line = azure
    trials = Trials(lambda: Trial(box, reference, (direct, {"account_key": KEY}), line), _AZURE)
    yield trials
    await trials.finish()


def test_every_step_is_in_the_table() -> None:
    named = {step for verbs in TABLE.values() for found in verbs.values() for step in found}
    assert named == {*_SUSPEND, *_RESUME, *_SAVE, *_RESTORE}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("fault", _LOCAL, ids=str)
async def test_somebody_is_killed(local_trials: Trials, fault: Fault) -> None:
    await local_trials.run(fault)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("fault", _AZURE, ids=str)
async def test_the_store_is_gone(azure_trials: Trials, fault: Fault) -> None:
    await azure_trials.run(fault)
