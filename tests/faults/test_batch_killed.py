"""kill -9 at random moments of everything that batch runs are made of: each ends by itself, none
runs twice at once, none is lost."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from singularity_kernel.batch.submitting.submission import passed_on
from singularity_proxy import build
from support import matrix
from support.batch_kills import VICTIMS, Jobs
from support.batch_runs import read
from support.service_process import ServiceProcess

JOBS = 6 if matrix.is_full() else 3
KILLING_S = 100.0 if matrix.is_full() else 20.0
SEEDS = range(matrix.seed(), matrix.seed() + (3 if matrix.is_full() else 1))
FEW = ["--NodeAgent.warm_proxies=1", "--NodeAgent.proxy_threads=1"]


@pytest.fixture
def environment(short_dir: Path) -> dict[str, str]:
    """Of the runs, whose home is in `short_dir`, whatever uid they have."""
    build.build()
    short_dir.chmod(0o777)
    own = ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    return passed_on({**os.environ, **dict.fromkeys(own, str(short_dir))})


@pytest.mark.asyncio
@pytest.mark.timeout(600 if matrix.is_full() else 300)
@pytest.mark.parametrize("seed", SEEDS)
async def test_runs_end_by_themselves_whatever_is_killed(
    short_dir: Path, environment: dict[str, str], seed: int
) -> None:
    chance = random.Random(seed)
    print("seed", seed)
    async with ServiceProcess(device_type="cpu", cpu_devices=2, agent_args=FEW) as service:
        jobs = Jobs(service, short_dir, environment)
        (short_dir / "hurry").touch()
        await jobs.submit("alone")
        assert (await jobs.ended(120))["alone"]["state"] == "completed", service.log()
        (short_dir / "hurry").unlink()
        names = [f"job-{n}" for n in range(JOBS)]
        for name in names:
            await jobs.submit(name)
        began, order, kills = time.monotonic(), list(VICTIMS), []
        while time.monotonic() - began < KILLING_S:
            chance.shuffle(order)
            for kind in order:
                await jobs.wait(chance.uniform(0.2, 2.0))
                if chance.random() < 0.4:
                    await jobs.checkpoint(chance)
                if await jobs.kill(kind, chance):
                    kills.append((round(time.monotonic() - began, 1), kind))
        print("killed", kills)
        (short_dir / "hurry").touch()
        ended = await jobs.ended(150)
    print({n: (s["state"], s["attempt"], s["reason"]) for n, s in ended.items()})
    assert {kind for _, kind in kills} == set(VICTIMS), kills
    alone = read(short_dir / "alone.ipynb")
    for name in names:
        jobs.check(name, ended[name], alone)
