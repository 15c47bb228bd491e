"""Device state of a checkpoint goes back into a notebook that goes on, without a process image."""

from __future__ import annotations

from pathlib import Path

import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from singularity_spawner.platform.demo.notebooks import GPT, SETUP, steps_of
from support.agent_kernels import run
from support.two_nodes import two_nodes

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]

LOOK = """
%load_ext singularity_kernel
def look():
    found = [p.detach().cpu().clone() for p in model.parameters()]
    for state in optimizer.state.values():
        found += [state["exp_avg"].cpu().clone(), state["exp_avg_sq"].cpu().clone()]
    return found

def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))
"""
BEFORE = """
going = torch.ones(100, device=DEVICE)
kept, drawn = look(), picker.get_state()
"""
SINCE = """
del going
newer = torch.arange(5., device=DEVICE)
train(7)
"""
AGAIN = """
picker.set_state(drawn)
for state in optimizer.state.values():
    state["step"].fill_(5.)  # a host tensor: it is as it is now
train(7)
"""


async def ask(client: AsyncKernelClient, expression: str) -> str:
    return (await run(client, f"print({expression})")).strip()


@pytest.mark.parametrize("capsule", ["process", "auto"])
async def test_weights_optimizer_and_generators_are_back_bit_for_bit(
    tmp_path: Path, capsule: str
) -> None:
    way = [f"--NodeAgent.capsule={capsule}"]
    async with two_nodes(tmp_path, names=("node-1",), agent_args=way) as nodes:
        session, client = await nodes.kernel(name="train.ipynb")
        try:
            await run(client, SETUP.format(device="cuda", seed=5) + GPT)
            await run(client, LOOK)
            await run(client, "train(5)")
            await run(client, BEFORE)
            stored = await nodes.client.checkpoint(session, "weights", "device")
            assert stored["last_checkpoint"]["level"] == "device"
            first = steps_of(await run(client, SINCE))
            await run(client, "later = look()")
            assert await ask(client, "same(kept, later)") == "False"

            said = await run(client, "%singularity restore weights")
            assert "device state of checkpoint 'weights'" in said, said
            assert "is back" in said
            assert await ask(client, "same(kept, look())") == "True"
            assert await ask(client, "newer.tolist()") == "[0.0, 1.0, 2.0, 3.0, 4.0]"
            report = (await nodes.session(session))["loss"]
            assert (report["level"], report["rolled_back"]) == ("device", False)
            assert report["back"][0].startswith("the contents of ")
            assert "1 random number generator" in report["back"]
            assert any("that no longer exist here" in line for line in report["lost"])
            assert any("left unchanged" in line for line in report["lost"])
            assert report["lost"][-1] == "Python variables, which are as they are now"
            assert report["hashes_checked"] > 0
            # From there on everything is as it was the first time.
            assert len(first) == 7
            assert steps_of(await run(client, AGAIN)) == first

            # What it was before the restore was stored, so that is undone as well.
            [before] = [c for c in await nodes.client.checkpoints(session) if not c["name"]]
            await run(client, "train(1)")
            await nodes.client.restore(session, before["id"])
            assert await ask(client, "same(later, look())") == "True"
            await nodes.client.end_session(session)
        finally:
            client.stop_channels()


async def test_one_whose_devices_are_parked_gets_it_too(tmp_path: Path) -> None:
    way = ["--NodeAgent.capsule=process"]
    async with two_nodes(tmp_path, names=("node-1",), agent_args=way) as nodes:
        session, client = await nodes.kernel(name="train.ipynb")
        try:
            await run(client, "import torch; x = torch.zeros(1 << 16, device='cuda')")
            await nodes.client.checkpoint(session, "zeros", "device")
            await run(client, "x += 1; print(x.sum().item())")
            await nodes.client.park(session)
            back = await nodes.client.restore(session, "zeros", discard=True)
            assert back["devices"] == []
            assert [c["name"] for c in await nodes.client.checkpoints(session)] == ["zeros"]
            assert await ask(client, "x.abs().sum().item()") == "0.0"
            await nodes.client.end_session(session)
        finally:
            client.stop_channels()
