"""Unchanged user code: trains a small model on the device it is told and prints its losses as JSON.

    python training.py gpt cuda --steps 6 --dropout 0.1

Run natively with `cpu` and in a session with `cuda`: the losses (as exact hexadecimal floats) must
be equal, and the step times are what the benchmark compares. Imports nothing but torch.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, time_steps, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, time_steps, self.heads, -1).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, time_steps, width)
        x = x + self.dropout(self.project(y))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, dropout, width=256, layers=4, heads=8, context=128, vocabulary=256):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)), inplace=True)


class CNN(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.net = nn.Sequential(
            Residual(32),
            nn.MaxPool2d(2),
            Residual(32),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            Residual(64),
            Residual(64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(64, 10),
        )

    def forward(self, x, targets):
        return F.cross_entropy(self.net(self.stem(x)), targets)


class MLP(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 128),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(128, 128),
            nn.Tanh(),
            nn.Linear(128, 10),
        )

    def forward(self, x, targets):
        return F.cross_entropy(self.net(x), targets)


def batch_of(model, device, generator, batch):
    if model == "gpt":
        x = torch.randint(0, 256, (batch, 129), generator=generator)
        return x[:, :-1].to(device), x[:, 1:].to(device)
    shape = (2 * batch, 3, 32, 32) if model == "cnn" else (8 * batch, 64)
    x = torch.randn(shape, generator=generator)
    return x.to(device), torch.randint(0, 10, (shape[0],), generator=generator).to(device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["gpt", "cnn", "mlp"])
    parser.add_argument("device")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--compile", action="store_true", help="forward and backward compiled")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1337)
    kinds = {"gpt": GPT, "cnn": CNN, "mlp": MLP}
    model = kinds[options.model](options.dropout).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    generator = torch.Generator().manual_seed(7)
    torch.manual_seed(4242)
    forward = torch.compile(model) if options.compile else model
    losses, seconds = [], []
    for _ in range(options.steps):
        start = time.perf_counter()
        batch = batch_of(options.model, options.device, generator, options.batch)
        loss = forward(*batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item().hex())
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"losses": losses, "seconds": seconds}))


if __name__ == "__main__":
    main()
