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


AGREE = """
import sys, torch, warnings
from torch import nn
warnings.simplefilter("ignore")

def tell():
    torch.cuda.synchronize()
    print(torch.cuda.memory_allocated(), flush=True)
    sys.stdin.readline()

layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
model = nn.Sequential(*layers).cuda()
del layers
optimizer = torch.optim.AdamW(model.parameters())
table = nn.Embedding(50, 8).cuda()
lstm = nn.LSTM(8, 8).cuda()
for n in range(3):
    optimizer.zero_grad()
    x = torch.randn(4 + n, 3, 8, 8, device="cuda")
    target = torch.zeros(4 + n, dtype=torch.long, device="cuda")
    loss = nn.functional.cross_entropy(model(x), target)
    loss = loss + lstm(table(torch.arange(5, device="cuda")).view(5, 1, 8))[0].sum()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
tell()
a = torch.randn(100, 100, device="cuda")
grown = torch.empty(0, device="cuda")
torch.mm(a, a, out=grown)
values, places = torch.empty(0, device="cuda"), torch.empty(0, dtype=torch.long, device="cuda")
torch.max(a, 0, out=(values, places))
picked, parts = a[a > 0], a.unfold(0, 3, 1).contiguous().chunk(3)
grown.resize_(300, 300); a.untyped_storage().resize_(8)
q, r = torch.linalg.qr(torch.randn(20, 20, device="cuda"))
try:
    torch.linalg.inv(torch.zeros(3, 3, device="cuda"))
except torch.linalg.LinAlgError:
    pass
try:
    torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
tell()
del model, optimizer, table, lstm, x, target, loss, a, grown, values, places, picked, parts, q, r
torch.cuda.synchronize()
tell()
"""


def test_worker_and_proxy_count_the_same_bytes() -> None:
    """The worker counts what it asks for, the proxy what it has: nothing drifts or is left."""
    with (
        Standalone() as session,
        subprocess.Popen(
            [sys.executable, "-c", AGREE],
            env=session.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as worker,
    ):  # fmt: skip
        assert worker.stdin is not None
        assert worker.stdout is not None
        told = []
        for _ in range(3):
            told.append(int(worker.stdout.readline()))
            assert session.rings()[0].read().ring_memory_current == told[-1]
            worker.stdin.write("\n")
            worker.stdin.flush()
        assert told[0] > 0
        assert told[1] > told[0]
        assert told[2] == 0
        assert worker.wait(30) == 0
