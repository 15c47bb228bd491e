"""The whole way in a real browser: login, form, JupyterLab, a notebook that uses a device."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from support.hub_platform import running_platform

SCRIPT = Path(__file__).parent / "browser" / "notebook.cjs"
CELLS = [
    {"code": "import torch; print(torch.cuda.is_available())", "expect": "True"},
    {"code": 'x = torch.ones(2, device="cuda"); print(x + 1)', "expect": "tensor([2., 2.]"},
    {"code": "%singularity", "expect": "premium"},
]


@pytest.mark.browser
@pytest.mark.asyncio
async def test_a_person_uses_a_device_in_a_notebook(tmp_path):
    chromium = next(
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    )
    async with running_platform(devices=2) as platform:
        steps = await browse(
            url=platform.url,
            user="alice",
            password=platform.password,
            chromium=chromium,
            folder=str(tmp_path),
            cells=CELLS,
        )
        shots = {path.name for path in tmp_path.glob("*.png")}
        keep = os.environ.get("SCREENSHOTS")
        for name in shots if keep else ():
            shutil.copy(tmp_path / name, keep)
        done = steps[-1]
        sessions = await platform.service().sessions("active")
        assert done["step"] == "done", json.dumps([steps, sessions], indent=1)
    (session,) = sessions
    assert steps[1]["free"] == "2 of 2 cpu devices free now."
    assert (session["user"], session["tier"], session["virtual_devices"]) == ("alice", "premium", 2)
    assert set(done["hosts"]) == {"127.0.0.1"}, "the page asks nobody else"
    assert done["errors"] == []
    assert done["toasts"] == 0, "nobody is asked about news from the internet"
    assert shots == {"form.png", "notebook.png"}


async def browse(**task):
    """Run the browser script; its steps, the last one first checked by the caller."""
    process = await asyncio.create_subprocess_exec(
        "node",
        str(SCRIPT),
        env={**os.environ, "BROWSER_TEST": json.dumps(task)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 240)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    steps = [json.loads(line) for line in out.decode().splitlines()]
    assert steps, err.decode()
    return steps
