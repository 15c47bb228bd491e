"""Unchanged user code: trains a model with DistributedDataParallel, as torchrun starts it.

    torchrun --nproc-per-node 4 ddp.py gpt cuda --steps 40 --dropout 0.1 --out folder

Run natively with `cpu` (gloo) and in a session with `cuda` ("nccl"). Each rank prints its step
numbers and writes its losses and a hash of its weights, as exact as they are. Imports nothing but
torch and the models of `training.py`.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import CNN, GPT, MLP, batch_of


class Wide(nn.Module):
    """Few activations and many parameters: the optimizer is most of the work."""

    def __init__(self, dropout):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 10)
        )

    def forward(self, x, targets):
        return nn.functional.cross_entropy(self.net(x), targets)


MODELS = {
    "gpt": GPT,
    "gpt_small": lambda dropout: GPT(dropout, width=64, layers=2, heads=4),
    "cnn": CNN,
    "mlp": MLP,
    "wide": Wide,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("device", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="of gradients per collective")
    parser.add_argument("--split", action="store_true", help="wait behind backward, and time it")
    parser.add_argument("--updates", type=int, default=1, help="runs of the optimizer in a step")
    parser.add_argument("--quiet", action="store_true", help="do not print step numbers")
    parser.add_argument(
        "--stay", action="store_true", help="at the end wait until the folder has a file 'leave'"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    local = int(os.environ["LOCAL_RANK"])
    if options.device == "cuda":
        torch.cuda.set_device(local)
    device = torch.device(options.device, local if options.device == "cuda" else None)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(1337 + rank)  # DDP sends the first rank's weights to the others
    model = DistributedDataParallel(
        MODELS[options.model](options.dropout).to(device), bucket_cap_mb=options.bucket_mb
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    generator = torch.Generator().manual_seed(7 + rank)
    kind = options.model.split("_")[0]
    torch.manual_seed(4242 + rank)
    losses, seconds, backward = [], [], []
    for step in range(options.steps):
        start = time.perf_counter()
        loss = model(*batch_of("mlp" if kind == "wide" else kind, device, generator, options.batch))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if options.split:
            torch.cuda.synchronize()
            backward.append(time.perf_counter() - start)
        if options.updates:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for _ in range(options.updates):
            optimizer.step()
        losses.append(loss.item().hex())
        seconds.append(time.perf_counter() - start)
        if not options.quiet:
            print("step", step, flush=True)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    mean = torch.tensor([float.fromhex(losses[-1])], device=device)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG if options.device == "cuda" else dist.ReduceOp.SUM)
    answer = {"losses": losses, "weights": digest.hexdigest(), "seconds": seconds}
    answer["backward"] = backward
    optimizer.zero_grad(set_to_none=True)
    dist.barrier()
    (options.out / f"{rank}.json").write_text(json.dumps(answer))
    print("done", flush=True)
    while options.stay and not (options.out / "leave").exists():
        time.sleep(0.01)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
