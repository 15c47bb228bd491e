"""The code of the demo's notebooks: plain PyTorch that knows nothing of the platform.

The same text runs natively on the CPU for the reference losses, with DEVICE = "cpu".
"""

from __future__ import annotations

SETUP = """
import torch, torch.nn.functional as F
from torch import nn
DEVICE = "{device}"
torch.set_num_threads(1)
torch.manual_seed({seed})
losses = []
"""

GPT = """
# A small GPT on real text: the licence and documentation texts that ship with Python.
import pydoc_data.topics, sys, os.path
text = "".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
for folder in (os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(os.__file__))):
    if os.path.exists(os.path.join(folder, "LICENSE.txt")):
        text = open(os.path.join(folder, "LICENSE.txt"), encoding="utf-8").read() + text
        break
data = torch.tensor(list(text.encode()), dtype=torch.long)

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)
    def forward(self, x):
        B, T, W = x.shape
        parts = self.qkv(self.n1(x)).split(W, 2)
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, W))
        return x + self.dropout(self.down(F.gelu(self.up(self.n2(x)))))

class GPT(nn.Module):
    def __init__(self, width=64, layers=2, heads=4, context=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, 256)
    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device)
        return self.head(self.blocks(self.tok(x) + self.pos(positions)))

model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
picker = torch.Generator().manual_seed(1)
torch.manual_seed(7)  # the model is built: from here on random numbers come from the device

def train(steps):
    for _ in range(steps):
        at = torch.randint(0, len(data) - 65, (8,), generator=picker)
        batch = torch.stack([data[i:i + 65] for i in at]).to(DEVICE)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print("step", len(losses), losses[-1].hex(), flush=True)
"""

CNN = """
# A small CNN on real data: the handwritten digits that ship inside scikit-learn.
from sklearn.datasets import load_digits
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10)).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
picker = torch.Generator().manual_seed(2)
torch.manual_seed(7)  # the model is built: from here on random numbers come from the device

def train(steps):
    for _ in range(steps):
        at = torch.randint(0, len(images), (64,), generator=picker)
        loss = F.cross_entropy(model(images[at].to(DEVICE)), labels[at].to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print("step", len(losses), losses[-1].hex(), flush=True)
"""


def steps_of(text: str) -> list[str]:
    """The losses in what a notebook printed, as exact hexadecimal floats, in order."""
    return [line.split()[2] for line in text.splitlines() if line.startswith("step ")]


UNTIL_FLAG = "import os\nwhile not os.path.exists('{name}.flag'):\n    train(1)\nprint('ended')"
"""Train until a file appears."""

PACED = """
import os, time
for _ in range({steps}):
    train(1)
    if not os.path.exists("{hurry}"):
        time.sleep({pause})
"""
"""A long cell on any machine, until a file appears; the losses do not depend on it."""

BOTH_DEVICES = """
import torch
x, y = torch.ones(1000, device="cuda:0"), torch.ones(1000, device="cuda:1")
for step in range(200):
    x, y = x * 1.01, y / 1.01
print(x.sum().item(), y.sum().item())
"""
