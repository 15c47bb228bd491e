"""Two ranks that come to share storages on one device, and `torch.add` with values of its own in
each: what `agent_with_wrong_identity.py` takes for equal."""

CODE = """
import os, sys, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
sum = torch.ones(1000, device="cuda")
for _ in range(2):  # then both are known to be in one group, and have identities
    dist.barrier()
    dist.all_reduce(sum)
    assert sum.mul_(0.5)[0].item() == 1.0
one = torch.ones(5000, device="cuda")
same = one * 7.0
mine = torch.add(one, one, alpha=rank)
for step in range(5):
    dist.all_reduce(sum)
    sum *= 0.5
    same += sum[0]
    mine += sum[0]
    assert same[0].item() == 8.0 + step, same[0]
    assert mine[0].item() == rank + 2.0 + step, mine[0]
print("right", rank, flush=True)
"""
