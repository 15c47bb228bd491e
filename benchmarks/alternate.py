"""Times the same training natively and under the device proxy in one process, in turn.

    python alternate.py gpt --blocks 12 --steps 2

Runs in a session. A block is some steps on "cpu" (native: no proxy is involved) and as many on
"cuda", each ended by reading the loss, so whatever disturbs the machine meets both. Prints the
seconds per step of every block as JSON. The losses of both are compared on the way.
"""

import argparse
import itertools
import json
import time

import torch
from torch import nn
from training import CNN, GPT, MLP, batch_of

KINDS = {"gpt": GPT, "cnn": CNN, "mlp": MLP, "varshape": GPT, "gpt_compile": GPT}
WARM_BLOCKS = 2  # of a model whose shapes repeat: the first ones fill caches on both sides


class Training:
    """One model on one device."""

    def __init__(self, kind: str, device: str, batch: int) -> None:
        torch.manual_seed(1337)
        self.kind, self.device, self.batch = kind, device, batch
        self.model = KINDS[kind](0.0).to(device)
        self.forward = torch.compile(self.model) if kind == "gpt_compile" else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=True)
        self.data = torch.Generator().manual_seed(7)
        self.numbers = itertools.count()

    def step(self) -> float:
        """One optimizer step; its loss."""
        data = "gpt" if KINDS[self.kind] is GPT else self.kind
        x, targets = batch_of(data, "cpu", self.data, self.batch)
        if self.kind == "varshape":  # a length that was never seen before, for 96 steps
            length = 32 + next(self.numbers) * 37 % 97
            x, targets = x[:, :length], targets[:, :length]
        loss = self.forward(x.to(self.device), targets.to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=list(KINDS))
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2, help="per block")
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trainings = {
        device: Training(options.model, device, options.batch) for device in ("cpu", "cuda")
    }
    warm = 0 if options.model == "varshape" else WARM_BLOCKS
    seconds: dict[str, list[float]] = {"cpu": [], "cuda": []}
    losses: dict[str, list[float]] = {"cpu": [], "cuda": []}
    for block in range(warm + options.blocks):
        order = ("cpu", "cuda") if block % 2 == 0 else ("cuda", "cpu")
        for device in order:
            start = time.perf_counter()
            losses[device] += [trainings[device].step() for _ in range(options.steps)]
            if block >= warm:
                seconds[device].append((time.perf_counter() - start) / options.steps)
    tolerance = 1e-3 if options.model == "gpt_compile" else 0.0
    far = max(abs(a - b) for a, b in zip(losses["cpu"], losses["cuda"], strict=True))
    if not far <= tolerance:
        raise SystemExit(f"the losses differ by {far}: what was timed is not the same training")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
