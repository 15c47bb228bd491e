"""Unchanged user code: times `all_reduce` in groups that add in different orders, in turns.

    torchrun --nproc-per-node 4 allreduce.py 16 cuda --orders bitwise,fast --rounds 20 --out folder

The size is in MB (2^20 bytes) of float32. Each rank writes, per order, the seconds of each round.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("megabytes", type=int)
    parser.add_argument("device", choices=["cuda"])
    parser.add_argument("--orders", default="bitwise,fast", help="of SINGULARITY_COLLECTIVES")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warm", type=int, default=3, help="rounds before these, not timed")
    parser.add_argument(
        "--stay", action="store_true", help="at the end wait until the folder has a file 'leave'"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    groups = {}
    for order in options.orders.split(","):
        os.environ["SINGULARITY_COLLECTIVES"] = order
        groups[order] = dist.new_group()
    tensor = torch.ones(options.megabytes << 18, device="cuda")
    seconds = {order: [] for order in groups}
    for number in range(-options.warm, options.rounds):
        for order, group in groups.items():
            tensor.fill_(dist.get_rank())
            torch.cuda.synchronize()
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor, group=group)
            torch.cuda.synchronize()
            if number >= 0:
                seconds[order].append(time.perf_counter() - start)
            world = dist.get_world_size()
            assert tensor[-1].item() == world * (world - 1) / 2
    (options.out / f"{dist.get_rank()}.json").write_text(json.dumps(seconds))
    print("done", flush=True)
    while options.stay and not (options.out / "leave").exists():
        time.sleep(0.01)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
