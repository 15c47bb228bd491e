"""An idle parked session's proxy is gone, and its bytes exist once on the host."""

import subprocess
import sys
from pathlib import Path

from singularity_proxy.standalone import Standalone

MIB = 1 << 20
HOLD = """
import sys, torch
state = [torch.full((1 << 20,), float(i), device="cuda") for i in range(64)]
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.readline()
print(sum(t.sum().item() for t in state) / (1 << 20), flush=True)
"""


def anonymous_bytes(pid: int) -> int:
    """Memory of the process itself, without the ring and other mapped files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(x.split()[1]) * 1024 for x in lines if x.startswith("RssAnon"))


def test_a_parked_state_is_on_the_host_once() -> None:
    with (
        Standalone() as session,
        subprocess.Popen(
            [sys.executable, "-c", HOLD],
            env=session.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as worker,
    ):  # fmt: skip
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        proxies = session.proxy_pids()
        before = anonymous_bytes(worker.pid)
        parked = session.park()
        assert parked["bytes"] >= 256 * MIB
        assert not any(Path(f"/proc/{pid}").exists() for pid in proxies)
        kept = {
            path.suffix: path.stat().st_blocks * 512
            for path in session.shm.iterdir()
            if path.suffix != ".ring"
        }
        assert set(kept) == {".snap"}
        assert 256 * MIB <= kept[".snap"] < 260 * MIB
        assert abs(anonymous_bytes(worker.pid) - before) < 16 * MIB  # nothing moved into the worker
        worker.stdin.write("\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == f"{sum(range(64)):.1f}\n"
        assert worker.wait(30) == 0
