"""A checkpoint that another machine cannot restore is refused there before anything is made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from singularity_proxy.capsule.images.machine import here
from singularity_proxy.errors import Unsupported
from support.agent import AgentBox
from support.agent_moves import gone, resume, suspend
from support.capsules import needs_criu

pytestmark = needs_criu

LOADS = """
import ctypes, sys, time
ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
time.sleep(600)
"""


def a_library() -> bytes:
    lines = Path("/proc/self/maps").read_text().splitlines()
    [path] = {line.split()[-1] for line in lines if "libm.so" in line}
    return Path(path).read_bytes()


@pytest.mark.asyncio
async def test_a_processor_that_lacks_something(tmp_path: Path) -> None:
    store = f"--NodeAgent.checkpoint_store={tmp_path}/store"
    async with AgentBox(store) as one, AgentBox(store, script="agent_lesser.py") as two:
        session = await one.python("import time; print('ready', flush=True); time.sleep(600)")
        await one.logged(session, "ready")
        done = await suspend(one, session, 1)
        with pytest.raises(Unsupported) as refused:
            await resume(two, session, 2, done["checkpoint"]["id"])
        missing = min(here(None).cpu)
        assert f"has a processor without {missing}, which the session may use" in str(refused.value)
        assert "resume it on a node like local" in refused.value.message
        await gone(two, session)
        await resume(one, session, 3, done["checkpoint"]["id"])
        assert (await one.session(session))["alive"]


@pytest.mark.asyncio
async def test_a_library_of_another_size_is_named_before_anything_is_fetched() -> None:
    async with AgentBox() as box:
        library = box.work / "libown.so"
        content = a_library()
        library.write_bytes(content)
        session = await box.start([sys.executable, "-c", LOADS, str(library)])
        await box.logged(session, "ready")
        done = await suspend(box, session, 1)
        library.write_bytes(content + b"more")
        with pytest.raises(Unsupported) as refused:
            await resume(box, session, 2, done["checkpoint"]["id"])
        assert f"node local has another or no {library}, which it has loaded" in str(refused.value)
        await gone(box, session)
        library.write_bytes(content)
        await resume(box, session, 3, done["checkpoint"]["id"])
