"""Notebooks on fewer devices than they see, with everything real: what the magic, `why`, `show` and
the events say of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy import build
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.core.values import administration as adm
from support.cli_commands import Commands
from support.kernel_notebooks import Notebook, manager
from support.kernel_platform import Platform, platform, server_of
from support.service_resizing import begin
from support.sharing_ranks import CODE

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

LIMIT_S = 90.0


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, short_dir: Path) -> Path:
    """Ada's own folder, whatever uid that is."""
    build.build()
    short_dir.chmod(0o777)
    for name in ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(short_dir))
    monkeypatch.chdir(short_dir)
    return short_dir


@contextlib.contextmanager
def running(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Platform]:
    """A platform, in the environment of ada's server."""
    folder = Path(os.environ["TMPDIR"]) / "ke"
    folder.mkdir(mode=0o711, exist_ok=True)
    with platform(folder, **options) as found:
        for name, value in found.environment("ada").items():
            monkeypatch.setenv(name, value)
        with server_of("ada", found):
            yield found


@contextlib.asynccontextmanager
async def notebook(tmp_path: Path, **config: Any) -> AsyncIterator[Notebook]:
    kernel = manager(tmp_path, **config)
    await kernel.start_kernel()
    found = Notebook(kernel)
    found.client.start_channels()
    try:
        await found.client.wait_for_ready(timeout=60)
        yield found
    finally:
        found.client.stop_channels()
        await kernel.shutdown_kernel(now=True)
        kernel.context.destroy(linger=0)


def let_go(stop: Path) -> None:
    """End the cell that waits for this file."""
    stop.touch()


async def when(client: ServiceClient, session: str, true: Callable[[Any], bool]) -> dict[str, Any]:
    """The session, as soon as this is true of it."""
    for _ in range(int(LIMIT_S / 0.1)):
        found: dict[str, Any] = await client.get_session(session)
        if true(found):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError((found, await client.history(session)))


COMPUTES = """
import os, time, torch
x = [torch.arange(100.0, device=f"cuda:{n}") + n for n in range(4)]
while not os.path.exists(STOP):
    x = [t + 0 for t in x]
    time.sleep(0.1)
"""
TRAIN = """
import time, torch
kept = [torch.ones(8, device=f"cuda:{n}") for n in range(3)]
while True:
    time.sleep(0.2)
    kept = [t + 0 for t in kept]
"""


async def test_a_notebook_gets_its_devices_back_with_its_next_cell(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four virtual devices; others need three of four for a while; then it is idle."""
    with running(monkeypatch, devices=4, agent_args=["--NodeAgent.proxy_threads=1"]) as real:
        often = (("scale_interval_s", 1.0), ("idle_grace_s", 1.0), ("min_run_s", 0.0))
        real.decide(adm.ParametersAsked("root", often))
        ada = ServiceClient.from_environment()
        bob = ServiceClient(real.url, "token-of-bob", timeout=60.0)
        async with notebook(tmp_path, devices=4, elastic=True) as nb:
            stop = home / "stop"
            nb.client.execute(f"STOP = {str(stop)!r}\n{COMPUTES}")
            await when(ada, nb.session, lambda s: s["physical_devices"] == 4)
            train = await begin(bob, TRAIN, name="train", devices=3, tier="premium")
            shrunk = await when(
                ada, nb.session, lambda s: (s["state"], s["physical_devices"]) == ("running", 1)
            )
            assert "bob/train (premium) needs 3 devices" in shrunk["reason"]
            let_go(stop)
            await when(ada, nb.session, lambda s: s["busy"] is False)
            # From now on nothing may change for ten minutes, but for one who comes back.
            real.decide(adm.ParametersAsked("root", (("scale_interval_s", 600.0),)))
            await when(bob, train, lambda s: s["state"] == "running")
            await bob.end_session(train)
            await asyncio.sleep(2.0)
            idle = await ada.get_session(nb.session)
            assert (idle["busy"], idle["physical_devices"]) == (False, 1)
            # Its node has not told yet that no calls come any more: until then it counts as busy.
            said = "with its next cell it gets up to 4 devices, as many as are free then"
            for _ in range(int(LIMIT_S / 0.2)):
                why = (await ada.why(nb.session))["sentence"]
                if said in why:
                    break
                await asyncio.sleep(0.2)
            assert said in why

            assert await nb.run("print([t.sum().item() for t in x])") == (
                "[4950.0, 5050.0, 5150.0, 5250.0]"
            )
            grown = await when(
                ada, nb.session, lambda s: (s["state"], s["physical_devices"]) == ("running", 4)
            )
            assert len(set(grown["devices"])) == 4
            assert await nb.run("print(torch.cuda.device_count(), x[3].sum().item())") == "4 5250.0"
            history = await nb.run("%singularity history")
            assert "runs its 4 virtual devices on 1 physical: bob/train (premium) needs" in history
            assert "runs its 4 virtual devices on 4 physical: devices are free" in history
            rules = [line["rule"] for line in await ada.history(nb.session)]
            assert rules.index("shrink") < rules.index("grow")


async def test_ranks_that_share_nothing_any_more_are_told_of_everywhere(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rule of identity is wrong: the first comparison finds it, and the numbers are right."""
    few = ["--NodeAgent.proxy_threads=1", "--NodeAgent.check_squashing_every=1"]
    script = "agent_with_wrong_identity.py"
    with running(monkeypatch, devices=1, agent_args=few, script=script) as real:
        ada = ServiceClient.from_environment()
        show = Commands(real.url, "token-of-ada")
        async with notebook(tmp_path, devices=2, elastic=True) as nb:
            await nb.run("import torch; torch.cuda.set_device(0); x = torch.ones(3).cuda()")
            stop = home / "stop"
            waits = f"while not os.path.exists({str(stop)!r}): time.sleep(0.1)"
            nb.client.execute(f"%%singularity run --ranks 2\n{CODE}\n{waits}\n")
            for _ in range(int(LIMIT_S / 0.2)):
                why = await ada.why(nb.session)
                if "should be equal and are not" in why["sentence"]:
                    break
                await asyncio.sleep(0.2)
            told = "cuda:0 and cuda:1 share cpu:0 and compute everything themselves"
            assert told in why["sentence"]
            assert "nothing was lost" in why["sentence"]
            assert why["facts"]["squashing"]["cpu:0"]["state"] == "off"
            shown = await show("show", nb.session)
            assert shown.code == 0, shown.err
            assert told in " ".join(shown.out.split())
            [line] = [c for c in await ada.history(nb.session) if c["rule"] == "squashing.off"]
            assert "its ranks share nothing on a device any more" in line["reason"]
            let_go(stop)
            await when(ada, nb.session, lambda s: s["busy"] is False)
            assert "share nothing on a device any more" in await nb.run("%singularity history")
            said = await nb.run("%singularity why")
            assert told in said
            assert await nb.run("print(x.sum().item())") == "3.0"
