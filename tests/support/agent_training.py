"""Unchanged PyTorch code for tests of the agent: trains on the device of argv, step by step.

    agent_training.py DEVICE STEPS [PAUSE_FOLDER [PAUSE_S]]

Prints the loss of every step as hexadecimal and, with a folder, waits before step N for the file
`go-N` when a file `stop-N` is there. Sleeps PAUSE_S seconds between steps while that folder has no
file `hurry`. At its end it prints "done" and is called `ENDED` (proc(5), comm).
"""

import os
import sys
import time

import torch

ENDED = "trained"

device, steps = sys.argv[1], int(sys.argv[2])
folder = sys.argv[3] if len(sys.argv) > 3 else None
pause = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
torch.manual_seed(3)
torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(128, 10)
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = torch.randn(256, 64, generator=torch.Generator().manual_seed(1)).to(device)
label = torch.arange(256).remainder(10).to(device)
torch.manual_seed(7)  # the CPU and "cuda" have a generator each: both begin here
for step in range(steps):
    if folder and os.path.exists(os.path.join(folder, f"stop-{step}")):
        print("waiting", step, flush=True)
        while not os.path.exists(os.path.join(folder, f"go-{step}")):
            time.sleep(0.01)
    if not (folder and os.path.exists(os.path.join(folder, "hurry"))):
        time.sleep(pause)
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.cross_entropy(model(data), label)
    loss.backward()
    optimizer.step()
    print("step", step, float(loss.detach()).hex(), flush=True)
print("done", flush=True)
with open("/proc/self/comm", "w") as name:
    name.write(ENDED)
time.sleep(14400)
