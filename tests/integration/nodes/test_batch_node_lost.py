"""A batch run whose node is gone goes on at the other node: from its last checkpoint, or else from
its beginning; never twice at once, and with the output of a run that nobody disturbed."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from singularity_kernel.batch.submitting.submission import passed_on
from support.batch_kills import CELLS, MODULES, same, write_job
from support.batch_runs import ENDED, Json, processes_of, read
from support.capsules import needs_criu
from support.two_nodes import NODES, TwoNodes, two_nodes

pytestmark = [needs_criu, pytest.mark.asyncio, pytest.mark.timeout(300)]


class Run:
    """A run of `write_job` on `nodes`, called `name`."""

    def __init__(self, nodes: TwoNodes, name: str, session: str) -> None:
        self.nodes, self.name, self.session = nodes, name, session
        self.at: set[str] = set()
        """Where it was seen to run."""
        self.most = 0
        """The most runners of it that were ever seen at a time."""

    @classmethod
    async def submitted(cls, nodes: TwoNodes, name: str, **more: Any) -> Run:
        own = ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
        run = {
            "notebook": str(write_job(nodes.home)),
            "output": str(nodes.home / f"{name}.ipynb"),
            "parameters": {"job": name},
            "python": sys.executable,
            "variables": passed_on({**os.environ, **dict.fromkeys(own, str(nodes.home))}),
            **more,
        }
        return cls(nodes, name, str((await nodes.client.submit(run=run, name=name))["id"]))

    def _look(self, found: Json) -> bool:
        """Count its runners; whether it has ended."""
        if found["process_state"] == "live":
            self.at.add(found["node"])
        lines = processes_of(self.session).values()
        self.most = max(self.most, sum(MODULES["papermill"] in line for line in lines))
        return found["process_state"] in ENDED

    async def printed(self, text: str) -> str:
        """Wait until it has printed `text`; the node that it is on."""
        await self.nodes.until(self.session, lambda found: found["process_state"] == "live", 120)
        await self.nodes.until_printed(self.session, text)
        return str((await self.nodes.session(self.session))["node"])

    async def ended(self) -> Json:
        found = await self.nodes.until(self.session, self._look, 150)
        assert found["state"] == "completed", found
        return found

    def output(self) -> Json:
        return same(read(self.nodes.home / f"{self.name}.ipynb"))

    def lines(self) -> list[tuple[int, str]]:
        """(cell, token of the process) for each cell that was begun, in order."""
        text = (self.nodes.home / f"{self.name}.lines").read_text()
        words = [line.split() for line in text.splitlines()]
        return [(int(cell), token) for cell, token in words]


@pytest.mark.parametrize("kept", [True, False], ids=["checkpoint", "beginning"])
async def test_its_node_is_gone(tmp_path: Path, kept: bool) -> None:
    async with two_nodes(tmp_path) as nodes:
        run = await Run.submitted(nodes, "lost", max_retries=1)
        here = await run.printed("\n1.2 ")
        if kept:
            await nodes.client.checkpoint(run.session, name="early")
        await nodes.until_printed(run.session, "\n3.1 ")
        nodes.kill(here)
        (nodes.home / "hurry").touch()
        ended = await run.ended()
        [there] = {*NODES} - {here}
        history = await nodes.client.history(run.session)
        assert there in run.at
        reasons = [c["reason"] for c in history]
        gone = next(r for r in reasons if f"node {here} has been gone for" in r)
        if kept:
            assert "it goes on from checkpoint 'early'" in gone, gone
            assert (ended["attempt"], ended["loss"]["rolled_back"]) == (1, True)
        else:
            assert "attempt 2 of 2 starts from its beginning" in gone, gone
            assert ended["attempt"] == 2
        alone = await Run.submitted(nodes, "alone")
        await alone.ended()
        assert run.output() == alone.output()
        assert run.most == 1
        assert not (nodes.home / "lost.twice").exists()
        tokens = list(dict.fromkeys(token for _, token in run.lines()))
        assert len(tokens) == (1 if kept else 2)  # a restored process is the one that it was
        last = [cell for cell, token in run.lines() if token == tokens[-1]]
        assert sorted(set(last)) == list(range(CELLS))
        back = [b for a, b in itertools.pairwise(last) if b <= a]
        assert len(back) == kept, run.lines()
        assert last.count(0) == 1  # what was done before the checkpoint is not done again
