"""Random schedules of parking, leaving, coming back, moving, saving and dying (50 seeds with
`--full`): a session that trains ends with the numbers of an undisturbed run, and whenever it came
back it was at exactly its newest checkpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.agent import AgentBox
from support.agent_schedule import STEPS, walk
from support.agent_trains import native_losses
from support.capsules import needs_criu
from support.matrix import some_of

pytestmark = [needs_criu, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

SEEDS = range(50)


@pytest.fixture(scope="module")
def reference() -> dict[int, str]:
    return native_losses(STEPS)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def boxes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[AgentBox]]:
    options = [
        f"--NodeAgent.checkpoint_store={tmp_path_factory.mktemp('shared')}/store",
        "--NodeAgent.lease_ttl_s=600",
    ]
    async with AgentBox(*options, warm=1) as one, AgentBox(*options, warm=1) as two:
        yield [one, two]


@pytest.mark.parametrize("seed", some_of(SEEDS, 4))
async def test_any_schedule_ends_in_the_same_numbers(
    boxes: list[AgentBox], seed: int, reference: dict[int, str]
) -> None:
    print(await walk(boxes, seed, reference))
