"""Elastic sessions with everything real: service, node agent, device proxies, a training.

A notebook on four virtual devices works on one while others need the rest, and grows back; its
numbers are those of an undisturbed run.
"""

from __future__ import annotations

import pytest
from support import agent_resizing
from support.agent_resizing import printed, training
from support.agent_trains import logged
from support.service_resizing import begin, four, size

pytestmark = pytest.mark.timeout(400)

STEPS = 120
PAUSE_S = 0.1
PREMIUM = """
import time, torch
kept = [torch.ones(8, device=f"cuda:{n}") for n in range(3)]
print("sum", sum(t.sum().item() for t in kept), flush=True)
while True:
    time.sleep(0.2)
    kept = [t + 0 for t in kept]
"""


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    return agent_resizing.undisturbed(STEPS)


@pytest.mark.asyncio
async def test_a_notebook_works_on_one_device_and_grows_back(undisturbed: list[str]) -> None:
    async with four() as service:
        alice, bob = service.client(), service.client("bob")
        policy = {"min_instance_type_count": 1, "auto_scale_interval_in_sec": 1}
        program = training(STEPS, PAUSE_S)
        notebook = await begin(alice, program, name="nb", devices=4, scale_policy=policy)
        await logged(alice, notebook, "step 5 ")
        await size(alice, notebook, 4)
        train = await begin(bob, PREMIUM, name="train", devices=3, tier="premium")
        await logged(bob, train, "sum 24.0")
        shrunk = await size(alice, notebook, 1)
        assert len(set(shrunk["devices"])) == 1
        assert "bob/train (premium) needs 3 devices" in shrunk["reason"]
        text = await logged(alice, notebook, "step 5 ")
        now = len(printed(text))
        await logged(alice, notebook, f"step {now + 3} ")  # it goes on meanwhile
        await bob.end_session(train)
        await size(alice, notebook, 4)
        assert printed(await logged(alice, notebook, "done")) == undisturbed
        rules = [line["rule"] for line in await alice.history(notebook)]
        assert "shrink" in rules
        assert "grow" in rules
        assert not [rule for rule in rules if rule.startswith("preempt")]
