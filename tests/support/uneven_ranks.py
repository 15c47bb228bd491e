"""Ranks that are in several process groups and do not go at one pace: one of them is slow, groups
overlap and meet at different rates, and messages are on their way between two.

    uneven_ranks.py --out FOLDER    (as `benchmarks.jobs.Job` starts it)

Prints "step N"; every rank checks what comes out of its collectives.
"""

from __future__ import annotations

import argparse
import os
import random
import time

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("device")
    parser.add_argument("--out")
    parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.set_num_threads(1)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    odd = dist.new_group([1, 2, 3])
    pair, mates = pairs[rank // 2], [rank // 2 * 2, rank // 2 * 2 + 1]
    chance = random.Random(rank)
    for step in range(10_000_000):
        x = torch.full((64,), float(rank + step % 7), device="cuda")
        for _ in range(1 + step % 3):  # more often in the pair than in all
            y = x.clone()
            dist.all_reduce(y, group=pair)
            assert y[0].item() == sum(mates) + 2 * (step % 7)
        if rank and step % 2:
            dist.all_reduce(x, group=odd)
            assert x[0].item() == 6 + 3 * (step % 7)
        if rank == 3 and step % 5 == 0:
            time.sleep(chance.uniform(0, 0.01))  # the others wait for it
        if rank == 0:
            dist.send(torch.full((8,), float(step), device="cuda"), 3)
        elif rank == 3:
            got = torch.empty(8, device="cuda")
            dist.recv(got, 0)
            assert got[0].item() == step
        if step % 4 == 0:
            together = torch.ones(8, device="cuda")
            dist.all_reduce(together)
            assert together[0].item() == 4
        print("step", step, flush=True)


if __name__ == "__main__":
    main()
