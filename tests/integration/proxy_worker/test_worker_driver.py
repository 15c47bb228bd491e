"""A worker never opens a driver, also with a CUDA build of torch, and `import torch` is silent."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from singularity_proxy.standalone import Standalone

WORKLOAD = """
import os, tempfile
import torch, torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
D = torch.device("cuda")
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Flatten(),
    nn.Linear(512, 16), nn.Dropout(0.1),
).cuda()
optimizer, scaler = torch.optim.AdamW(net.parameters(), fused=True), torch.amp.GradScaler("cuda")
for _ in range(3):
    with torch.autocast("cuda"):
        loss = net(torch.randn(2, 3, 8, 8, device=D)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
nn.LSTM(4, 4).cuda()(torch.randn(3, 2, 4, device=D))[0].sum().backward()
x = torch.randn(4, 4, device=D)
torch.linalg.svd(x), torch.fft.fft(x), x.sort(), x.unique(), x[x > 0], torch.topk(x, 2), str(x)
F.scaled_dot_product_attention(*[torch.randn(1, 2, 4, 8, device=D) for _ in range(3)])
with torch.cuda.stream(torch.cuda.Stream()):
    y = x * 2
torch.cuda.Event(enable_timing=True).record()
torch.cuda.synchronize()
torch.cuda.memory_summary(), torch.cuda.get_device_properties(0), torch.cuda.mem_get_info()
torch.cuda.empty_cache()
with tempfile.NamedTemporaryFile() as file:
    torch.save(net.state_dict(), file.name)
    torch.load(file.name, map_location=D)
torch.randn(8).pin_memory().to(D, non_blocking=True)
torch.rand(2, device=D, generator=torch.Generator(D).manual_seed(1))
torch.cuda.nvtx.range_push("a"), torch.cuda.nvtx.range_pop()
"""
PROFILE = """
import os, torch
x = torch.ones(4, 4, device="cuda")
with torch.profiler.profile() as profile:
    (x @ x).sum().item()
assert "aten::matmul" in profile.key_averages().table()
"""
LOOK = """
maps = {line.split("/", 1)[1] for line in open("/proc/self/maps") if "/" in line}
open_files = []
for fd in os.listdir("/proc/self/fd"):
    try:
        open_files.append(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        pass
print([sorted(m for m in maps if "libcuda.so" in m or "libnvidia-ml" in m), open_files])
"""


def looked_for(log: Path) -> int:
    """How often the dynamic loader was asked for the driver or its management library."""
    text = "".join(path.read_text(errors="replace") for path in log.parent.glob(f"{log.name}.*"))
    assert "find library=" in text  # the loader did write its log
    return text.count("find library=libcuda.so") + text.count("find library=libnvidia-ml.so")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "workload",
    [
        WORKLOAD,
        pytest.param(
            PROFILE,
            marks=pytest.mark.xfail(
                torch.version.cuda is not None,
                reason="Kineto asks the CUDA runtime for the driver's version when it starts",
            ),
        ),
    ],
    ids=["broad", "profiler"],
)
def test_no_driver_is_opened(tmp_path: Path, workload: str) -> None:
    native, worker = tmp_path / "native", tmp_path / "worker"
    trace = {"LD_DEBUG": "libs"}
    subprocess.run(
        [sys.executable, "-c", "import torch"],
        env={**os.environ, **trace, "LD_DEBUG_OUTPUT": str(native)}, check=True, timeout=100,
    )  # fmt: skip
    with Standalone() as session:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", workload + LOOK],
            env={**session.env(), **trace, "LD_DEBUG_OUTPUT": str(worker)},
            capture_output=True, text=True, timeout=250, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    mapped, opened = ast.literal_eval(done.stdout.splitlines()[-1])
    assert mapped == []
    assert [name for name in opened if name.startswith("/dev/nvidia")] == []
    # The constructors of NVIDIA's own libraries look for it while torch is being loaded; nothing
    # that runs later does, so that a driver that happens to be there stays unused.
    assert looked_for(worker) == looked_for(native)


def test_importing_torch_prints_nothing() -> None:
    with Standalone() as session:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", "import torch; torch.cuda.is_available()"],
            env=session.env(), capture_output=True, text=True, timeout=100, check=True,
        )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "")
