"""What the users of the campaign run: nothing but torch and the standard library, as users write
it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"

GPT = """\
import hashlib, itertools, sys, time
sys.path.insert(0, {folder!r})
import torch
from training import GPT, batch_of
torch.set_num_threads(1)
torch.manual_seed(1337)
model = GPT(0.1, width=64, layers=2, heads=4).to({device!r})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(7)
torch.manual_seed(4242)
losses = []
for step in range({steps}):
    loss = model(*batch_of("gpt", {device!r}, generator, 4))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item().hex())
    sys.stdout.write(f"step {{step}} {{losses[-1]}}\\n"); sys.stdout.flush()
    time.sleep({pause})
"""
"""A training that prints each loss exactly, a whole line at a time."""

DIGEST = "print(len(losses), hashlib.sha256(' '.join(losses).encode()).hexdigest())"
"""The losses as the notebook's own variable has them."""

CSV = """\
import csv, time
total = 0
with open({path!r}, "w", newline="") as file:
    writer = csv.writer(file)
    for row in range({rows}):
        total = (total * 31 + row) % 1000003
        writer.writerow([row, total])
        file.flush()
        time.sleep({pause})
print("total", total)
"""

IDLE = """\
import hashlib, random, torch
chosen = random.Random(11)
names = {f"key{n}": chosen.random() for n in range(5000)}
words = [chosen.randbytes(64) for _ in range(2000)]
matrix = torch.randn(256, 256, generator=torch.Generator().manual_seed(3)).to("cuda")
visits = 0
def fingerprint():
    global visits
    visits += 1
    parts = repr(sorted(names.items())).encode() + b"".join(words)
    parts += matrix.cpu().numpy().tobytes()
    return visits, hashlib.sha256(parts).hexdigest()
print(*fingerprint())
"""

NOTES = "import random; notes = []"
NOTE = "notes.append({n}); print(len(notes), sum(notes))"

DDP = """\
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
device = sys.argv[1]
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if device == "cuda" else "gloo")
rank = dist.get_rank()
torch.manual_seed(5)
layer = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
model = DistributedDataParallel(layer.to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
generator = torch.Generator().manual_seed(100 + rank)
for step in range(int(sys.argv[2])):
    x = torch.randn(8, 16, generator=generator).to(device)
    loss = (model(x) - x.sum(dim=1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sys.stdout.write(f"rank {rank} step {step} {loss.item().hex()}\\n"); sys.stdout.flush()
    time.sleep(float(sys.argv[3]))
dist.destroy_process_group()
"""

STEPS = """\
import sys, time, torch
torch.manual_seed(21)
x = torch.zeros(64, device={device!r})
noise = torch.Generator().manual_seed(9)
for step in range({steps}):
    x = x * 0.5 + torch.randn(64, generator=noise).to({device!r})
    sys.stdout.write(f"step {{step}} {{x.sum().item().hex()}}\\n"); sys.stdout.flush()
    time.sleep({pause})
"""
"""What the batch notebook's cell and the plain script compute."""

LINE = re.compile(r"^(?:rank (\d+) )?step (\d+) (\S+)$", re.MULTILINE)


def lines(text: str) -> list[tuple[int, int, str]]:
    """(rank, step, loss) of each whole line."""
    return [(int(r or 0), int(s), x) for r, s, x in LINE.findall(text)]


def csv_rows(rows: int) -> list[str]:
    """The lines of the CSV writer's file."""
    found, total = [], 0
    for row in range(rows):
        total = (total * 31 + row) % 1000003
        found.append(f"{row},{total}")
    return found


def first_difference(found: list[str], expected: list[str]) -> int:
    """Where two lists differ first: the length of what they have in common."""
    pairs = zip(found, expected, strict=False)
    shorter = min(len(found), len(expected))
    return next((n for n, (mine, other) in enumerate(pairs) if mine != other), shorter)


def _plain(*command: str) -> list[tuple[int, int, str]]:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    return lines(done.stdout)


def undisturbed_gpt(steps: int) -> list[str]:
    """The losses of the training on the CPU, which nobody disturbs."""
    code = GPT.format(folder=str(BENCHMARKS), device="cpu", steps=steps, pause=0)
    return [loss for _, _, loss in _plain("-c", code)]


def undisturbed_steps(steps: int) -> list[str]:
    """The same of `STEPS`."""
    return [x for _, _, x in _plain("-c", STEPS.format(device="cpu", steps=steps, pause=0))]


def undisturbed_ranks(steps: int) -> dict[int, list[str]]:
    """The losses of both ranks of `DDP` on the CPU."""
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    with tempfile.TemporaryDirectory(prefix="chaos-ranks-") as folder:
        script = Path(folder, "ddp.py")
        script.write_text(DDP)
        found: dict[int, list[str]] = {0: [], 1: []}
        for rank, step, loss in _plain(*command, str(script), "cpu", str(steps), "0"):
            assert step == len(found[rank])
            found[rank].append(loss)
    return found
