"""Two nodes on one machine: sessions move between them through the store alone, and go on elsewhere
when a node dies."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from singularity_spawner.platform.demo.notebooks import GPT, SETUP, steps_of
from singularity_spawner.platform.demo.tour import native_losses as native_gpt
from support.agent_kernels import run
from support.agent_trains import STEPS, TRAINING, losses, native_losses
from support.capsules import needs_criu
from support.two_nodes import NODES, TwoNodes, two_nodes

pytestmark = [needs_criu, pytest.mark.asyncio, pytest.mark.timeout(180)]

FIRST, SECOND = NODES


class Cell:
    """A cell that runs: what it has printed so far."""

    def __init__(self, client: AsyncKernelClient, code: str) -> None:
        self._client = client
        self.id = client.execute(code)
        self.text = ""

    async def until(self, true: Any, seconds: float = 60.0) -> str:
        """Read on until `true` of what was printed, or the cell is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._read_until(true)
        except TimeoutError:
            raise AssertionError(f"the last it said was {self.text[-300:]!r}") from None
        return self.text

    async def _read_until(self, true: Any) -> None:
        while not true(self.text):
            message = await self._client.get_iopub_msg(timeout=None)
            if message["parent_header"].get("msg_id") != self.id:
                continue
            content = message["content"]
            self.text += content.get("text") or "\n".join(content.get("traceback", []))
            if content.get("execution_state") == "idle":
                break

    async def step(self, number: int) -> str:
        return await self.until(lambda text: f"step {number} " in text)


def back_on(node: str) -> Any:
    """Whether a session goes on here from an older state."""
    return lambda s: (s["node"], s["process_state"]) == (node, "live") and s["incarnation"] > 1


async def process_of(nodes: TwoNodes, session: str, node: str) -> int:
    """The host's pid of the session's first process, as the agent of `node` knows it."""
    hello = next(h for h in await nodes.fleet.hello() if h["node"] == node)
    return int(next(s["pid"] for s in hello["sessions"] if s["session"] == session))


async def test_a_cell_goes_to_the_other_node_and_back(tmp_path: Path) -> None:
    steps = 40
    async with two_nodes(tmp_path) as nodes:
        session, client = await nodes.kernel(name="train.ipynb")
        try:
            await run(client, SETUP.format(device="cuda", seed=5) + GPT)
            slowly = f"import time\nfor _ in range({steps}):\n    train(1)\n    time.sleep(0.1)"
            cell = Cell(client, slowly)
            for at, here, there in ((5, FIRST, SECOND), (20, SECOND, FIRST)):
                await cell.step(at)
                moved = await nodes.client.migrate(session, node=there)
                assert moved["node"] == there, moved
                assert moved["loss"]["rolled_back"] is False
                # It is all there, and nothing of it is left here but the way to its clients.
                assert nodes.left(session, here) == []
                if nodes.networks:
                    pid = await process_of(nodes, session, there)
                    own = os.stat(f"/proc/{pid}/ns/net").st_ino
                    assert own == os.stat(f"/run/netns/{nodes.networks[there]}").st_ino
            text = await cell.until(lambda _: False)
            assert steps_of(text) == await native_gpt(GPT, 5, steps, tmp_path)
            assert await run(client, "print(len(losses))") == f"{steps}\n"
            await nodes.client.end_session(session)
        finally:
            client.stop_channels()


async def test_a_node_that_dies_costs_what_came_after_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    reference = native_losses()
    async with two_nodes(tmp_path, checkpoint_every_s=1.0) as nodes:
        argv = [sys.executable, TRAINING, "cuda", str(STEPS), str(nodes.home), "0.4"]
        session = (await nodes.start(argv, SECOND, name="train"))["id"]
        await nodes.until_printed(session, "step 3 ")
        before = await nodes.client.checkpoints(session)
        known = {c["id"] for c in before}

        async def stored() -> bool:
            return not {c["id"] for c in await nodes.client.checkpoints(session)} <= known

        for _ in range(600):
            if await stored():
                break
            await asyncio.sleep(0.05)
        said = await nodes.printed(session)
        nodes.kill(SECOND)
        done = max(losses(said))
        back = await nodes.until(session, back_on(FIRST))
        assert back["loss"]["rolled_back"] is True, back
        [what] = [x for x in back["loss"]["lost"] if x.startswith("what the session did after")]
        newest = next(
            c
            for c in await nodes.client.checkpoints(session)
            if c["id"] == back["loss"]["checkpoint"]
        )
        assert newest["at"][:19].replace("T", " ") in what
        reasons = [c["reason"] for c in await nodes.client.history(session)]
        gone = next(r for r in reasons if r.startswith(f"node {SECOND} has been gone for"))
        assert re.search(r"it goes on from checkpoint .* old, and what it did since is lost", gone)
        (nodes.home / "hurry").touch()
        said = await nodes.until_printed(session, "done")
        # Its log came back with it, as it was then: every step is there once, none is another.
        assert [int(n) for n in re.findall(r"^step (\d+) ", said, re.M)] == list(range(STEPS))
        assert losses(said) == reference
        assert done < STEPS - 1
        await nodes.client.end_session(session)


APPEND = """
import time
out = open("results.csv", "a")
for n in range(100000):
    out.write(f"{n},{n * n}\\n")
    out.flush()
    print("row", n, flush=True)
    time.sleep(0.05)
"""


async def test_a_csv_in_home_has_no_doubled_rows_after_its_node_died(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as nodes:
        session, client = await nodes.kernel(name="rows.ipynb")
        try:
            await nodes.client.migrate(session, node=SECOND)
            cell = Cell(client, APPEND)
            await cell.until(lambda text: "row 20\n" in text)
            await nodes.client.checkpoint(session, name="rows")
            [kept] = [c for c in await nodes.client.checkpoints(session) if c["name"] == "rows"]
            seen = len(re.findall(r"^row ", cell.text, re.M))
            await cell.until(lambda text: f"row {seen + 60}\n" in text)
            nodes.kill(SECOND)
            csv = nodes.home / "results.csv"
            grown = csv.read_text()
            back = await nodes.until(session, back_on(FIRST))
            copy = nodes.home / f"results.csv.after-{kept['id']}"
            assert copy.read_text() == grown
            [told] = [x for x in back["loss"]["lost"] if str(copy) in x]
            assert told.startswith(f"{csv} had grown by ")
            number = grown.count("\n") + 20
            for _ in range(600):
                if csv.read_text().count("\n") > number:
                    break
                await asyncio.sleep(0.05)
            await nodes.client.signal(session, 2)
            await cell.until(lambda _: False)
            rows = [line.split(",")[0] for line in csv.read_text().splitlines()]
            assert len(rows) > number
            assert rows == [str(n) for n in range(len(rows))]
            assert (await run(client, "print(n >= 0)")).endswith("True\n")
            await nodes.client.end_session(session)
        finally:
            client.stop_channels()
