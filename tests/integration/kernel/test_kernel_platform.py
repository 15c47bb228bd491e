"""Kernels and runs on the real scheduler, node agent and device proxies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from singularity_kernel.provision.provisioner import KernelNotStarted
from singularity_scheduler.client import ServiceClient
from support.kernel_notebooks import Notebook, manager
from support.kernel_platform import Platform, server_of
from support.kernel_relay import wait_until


@pytest.fixture
def real(running: Platform, monkeypatch: pytest.MonkeyPatch, short_dir: Path) -> Iterator[Platform]:
    """The platform, in the environment of ada's server."""
    for name, value in running.environment("ada").items():
        monkeypatch.setenv(name, value)
    short_dir.chmod(0o777)
    for name in ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(short_dir))  # ada's own, whatever uid that is
    monkeypatch.chdir(short_dir)
    with server_of("ada", running):
        yield running


@pytest.mark.asyncio
async def test_a_notebook_keeps_its_tensors_while_its_device_comes_and_goes(
    real: Platform, tmp_path: Path
) -> None:
    kernel = manager(tmp_path)
    await kernel.start_kernel()
    notebook = Notebook(kernel)
    notebook.client.start_channels()
    try:
        await notebook.client.wait_for_ready(timeout=60)
        assert "none held now" in await notebook.run("%singularity")
        code = "import torch; x = torch.arange(1000., device='cuda'); print(x.sum().item())"
        assert await notebook.run(code) == "499500.0"
        shown = await notebook.run("%singularity")
        assert "cuda:0 -> cpu:0" in shown
        assert "of 4 GiB" in shown

        assert "nothing is lost" in await notebook.run("%singularity park")
        assert "kept in host memory" in await notebook.run("%singularity")
        assert await kernel.is_alive()
        assert await notebook.run("print((x * 2).sum().item())") == "999000.0"

        refused = await notebook.run("%singularity migrate --device 7")
        assert "cpu:0, cpu:1" in refused
        assert "cpu:1" in await notebook.run("%singularity migrate --device 1")
        assert await notebook.run("print(x[-1].item(), x.device)") == "999.0 cuda:0"
        assert "Checkpoint stored" in await notebook.run("%singularity checkpoint lunch")
        assert "moving to cpu:1" in await notebook.run("%singularity history")
        assert "cpu:1" in await notebook.run("%singularity why")

        # between cells it is idle, and the scheduler knows
        service = ServiceClient.from_environment()
        for _ in range(500):
            found = await service.get_session(notebook.session)
            if found["idle_since"]:
                break
            await asyncio.sleep(0.02)
        assert found["idle_since"] is not None
        assert found["busy"] is False

        first = notebook.session
        await kernel.restart_kernel()
        await notebook.client.wait_for_ready(timeout=60)
        assert notebook.session != first
        assert await notebook.run("print('x' in globals())") == "False"
        ended = await service.get_session(first)
        assert ended["process_state"] in ("completed", "cancelled")
    finally:
        notebook.client.stop_channels()
        await kernel.shutdown_kernel()
        kernel.context.destroy(linger=0)
    last = await ServiceClient.from_environment().sessions("active")
    assert last == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"tier": "gold"}, "unknown tier 'gold'"),
        ({"devices": 1_000_000}, "1000000 devices asked"),
        ({"devices": -1}, "-1 devices asked"),
    ],
)
async def test_what_the_scheduler_refuses_is_one_sentence(
    real: Platform, tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    kernel = manager(tmp_path, **config)
    with pytest.raises(KernelNotStarted) as refused:
        await kernel.start_kernel()
    assert kernel.ready.exception() is refused.value
    kernel.context.destroy(linger=0)
    kernel.cleanup_connection_file()
    assert sentence in str(refused.value)
    assert refused.value.status_code == 400


TRAIN = """
import os, sys, torch
assert torch.cuda.is_available() and torch.cuda.device_count() == 2
x = torch.ones(10, device="cuda:1")
print(float(x.sum()), "SINGULARITY_API_URL" in os.environ)
sys.exit(3)
"""


def test_run_in_a_terminal_is_a_session_with_devices(real: Platform, short_dir: Path) -> None:
    service = ServiceClient.from_environment()
    identity = asyncio.run(service.identity("ada"))
    script = short_dir / "train.py"
    script.write_text(TRAIN)
    done = subprocess.run(
        [*_cli("run", "--devices", "2"), sys.executable, str(script)],
        user=identity["uid"] if identity["mapped"] else None,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (3, "10.0 False\n"), done.stderr

    def over() -> bool:
        return asyncio.run(service.sessions("active")) == []

    wait_until(over, 30, "the session did not end with its process")


def test_run_with_an_unknown_tier(real: Platform) -> None:
    done = subprocess.run(
        [*_cli("run", "--tier", "gold"), "true"],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 64
    assert "pick premium, standard or basic" in done.stderr
    assert done.stderr.count("\n") == 1


def _cli(*words: str) -> list[str]:
    return [sys.executable, "-m", "jupyter", "singularity", *words]
