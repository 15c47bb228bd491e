"""A batch run whose device proxy and node agent do not answer for a while: what it waited for is in
its log, and its output notebook is the one of a run that nobody disturbed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from singularity_kernel.batch.submitting.submission import passed_on
from singularity_proxy import build
from support.agent import until
from support.batch_kills import Jobs
from support.batch_runs import Json, read, without_times
from support.processes import stop_process
from support.service_process import ServiceProcess

FEW = ["--NodeAgent.warm_proxies=1", "--NodeAgent.proxy_threads=1"]
WAITS = "waiting for the device: its device proxy does not answer; nothing is lost"


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """They do nothing meanwhile."""
    for pid in pids:
        stop_process(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def is_in(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text(errors="replace")


def outputs(notebook: Json) -> list[Json]:
    """All outputs, standard error among them, without times."""
    return [cell.get("outputs", []) for cell in without_times(notebook)["cells"]]


@pytest.fixture
def environment(short_dir: Path) -> dict[str, str]:
    """Of the runs, whose home is in `short_dir`, whatever uid they have."""
    build.build()
    short_dir.chmod(0o777)
    own = ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    return passed_on({**os.environ, **dict.fromkeys(own, str(short_dir))})


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_what_a_run_waited_for_is_in_its_log_and_not_in_its_output(
    short_dir: Path, environment: dict[str, str]
) -> None:
    async with ServiceProcess(device_type="cpu", cpu_devices=1, agent_args=FEW) as service:
        jobs = Jobs(service, short_dir, environment)
        (short_dir / "hurry").touch()
        await jobs.submit("alone")
        assert (await jobs.ended(120))["alone"]["state"] == "completed", service.log()
        (short_dir / "hurry").unlink()
        await jobs.submit("kept")
        await until(lambda: is_in(short_dir / "kept.lines", "1 "), timeout=60.0)
        log = Path(service.agent["runtime_dir"]) / "s" / jobs.ids["kept"] / "capsule.log"
        silent = [*jobs.victims("agent"), *jobs.victims("proxy")]
        assert len(silent) >= 2
        with stopped(silent):
            await until(lambda: is_in(log, WAITS), timeout=60.0)
        (short_dir / "hurry").touch()
        ended = await jobs.ended(120)
        assert ended["kept"]["state"] == "completed", (ended, service.log())
        assert ended["kept"]["attempt"] == 1
    kept, alone = (read(short_dir / f"{name}.ipynb") for name in ("kept", "alone"))
    assert outputs(kept) == outputs(alone)
    assert "waiting for the device" not in (short_dir / "kept.ipynb").read_text()
