"""Unchanged user code that trains with torch's own libraries for several ranks, one after another.

    library_ranks.py fsdp2,zero cuda --steps 6 --out folder   (as `benchmarks.jobs.Job` starts it)

Run natively with `cpu` (gloo) and in a session with `cuda` ("nccl"). Each rank prints its step
numbers and writes for each program its losses and a hash of everything that it has trained
(`weights`), as exact as they are, and the sum of the weights (`total`). Imports nothing but torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

WIDTH = 48


class Net(nn.Module):
    """With a branch that not every step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, WIDTH)
        self.second = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1))
        self.head = nn.Linear(WIDTH, 5)
        self.spare = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor, spare: bool = False) -> torch.Tensor:
        x = self.second(F.gelu(self.first(x)))
        return self.head(x) + self.spare(x) if spare else self.head(x)


class Rank:
    """What all programs need: a device, data of this rank, and where results go."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device_type: str = options.device
        self.steps: int = options.steps
        self.out: Path = options.out
        self.number, self.world = dist.get_rank(), dist.get_world_size()
        local = int(os.environ["LOCAL_RANK"])
        self.device = torch.device(options.device, local if options.device == "cuda" else None)
        self.generator = torch.Generator().manual_seed(7 + self.number)
        self.losses: list[str] = []
        self._done = 0

    @property
    def proxied(self) -> bool:
        return self.device_type == "cuda"

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8, 12, generator=self.generator)
        y = torch.randint(0, 5, (8,), generator=self.generator)
        return x.to(self.device), y.to(self.device)

    def lost(self, loss: torch.Tensor) -> None:
        """The loss of a finished step."""
        self.losses.append(loss.item().hex())
        print("step", self._done, flush=True)
        self._done += 1

    def net(self) -> Net:
        """The same weights in all ranks; then random numbers of its own."""
        torch.manual_seed(11)
        net = Net().to(self.device)
        torch.manual_seed(100 + self.number)
        return net


def full(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested containers, on the host and in one piece."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from full(value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from full(one)
    elif isinstance(value, DTensor):
        yield value.full_tensor().detach().cpu()
    elif isinstance(value, torch.Tensor):
        yield value.detach().cpu()


def sharded(rank: Rank, *shape: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """FSDP2 over all ranks, or over a mesh of this shape whose second dimension shards."""
    names = ("replicate", "shard")[-len(shape) :] if shape else ("shard",)
    mesh = init_device_mesh(rank.device_type, shape or (rank.world,), mesh_dim_names=names)
    net = rank.net()
    for part in (net.first, net.second, net.head, net.spare, net):
        fully_shard(part, mesh=mesh)
        if not rank.proxied:  # gloo knows no averages
            part.set_force_sum_reduction_for_comms(True)
    return net, torch.optim.AdamW(net.parameters(), lr=0.01)


def step(rank: Rank, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x, y = rank.batch()
    loss = F.cross_entropy(model(x, spare=True), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    rank.lost(loss)


def fsdp2(rank: Rank) -> Any:
    model, optimizer = sharded(rank)
    for _ in range(rank.steps):
        step(rank, model, optimizer)
    return list(model.parameters())


def hybrid(rank: Rank) -> Any:
    """Two replicas, each sharded over half of the ranks."""
    model, optimizer = sharded(rank, 2, rank.world // 2)
    for _ in range(rank.steps):
        step(rank, model, optimizer)
    return list(model.parameters())


def zero(rank: Rank) -> Any:
    """The optimizer's state is sharded, then gathered in one rank."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ids = [rank.device.index] if rank.proxied else None
    model = DistributedDataParallel(rank.net(), device_ids=ids)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    for _ in range(rank.steps):
        step(rank, model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    return [list(model.parameters()), optimizer.state_dict() if rank.number == 0 else ()]


def accumulate(rank: Rank) -> Any:
    """Gradients of two batches without a reduction between; a branch that only half of the ranks
    use; coalesced collectives; and a group of each two neighbours."""
    pairs = [dist.new_group([n, n + 1], group_desc="dp") for n in range(rank.world - 1)]
    ids = [rank.device.index] if rank.proxied else None
    model = DistributedDataParallel(
        rank.net(), device_ids=ids, find_unused_parameters=True, bucket_cap_mb=0.005
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen = [torch.zeros(5, device=rank.device) for _ in range(3)]
    for number in range(rank.steps):
        spare = (number + rank.number) % 2 == 0
        for part in range(2):
            x, y = rank.batch()
            with model.no_sync() if part == 0 else nullcontext():
                loss = F.cross_entropy(model(x, spare=spare), y)
                loss.backward()
        for one in seen:
            one.add_(loss.detach())
        together(rank, seen)
        for first, pair in enumerate(pairs):
            if rank.number in (first, first + 1):
                dist.all_reduce(seen[0], group=pair)
        for one in seen:
            one.mul_(0.125)
        optimizer.step()
        optimizer.zero_grad()
        rank.lost(loss)
    for number, pair in enumerate(pairs):
        if rank.number in (number, number + 1):
            dist.destroy_process_group(pair)
    return [list(model.parameters()), seen]


def together(rank: Rank, tensors: list[torch.Tensor]) -> None:
    """The sums over all ranks, coalesced; gloo cannot do that."""
    if not rank.proxied:
        for one in tensors:
            dist.all_reduce(one)
        return
    with dist.distributed_c10d._coalescing_manager(device=rank.device, async_ops=True) as work:
        for one in tensors:
            dist.all_reduce(one)
    work.wait()


def stored(rank: Rank) -> Any:
    """Half of the steps; everything is stored; the other half. Then again from what was stored,
    into a model that has something else: the same numbers. Once as it is, and once behind the
    training's back (`async_save`), which goes on meanwhile."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = sharded(rank)
    for _ in range(rank.steps // 2):
        step(rank, model, optimizer)
    names = [str(rank.out / name) for name in ("checkpoint", "behind")]
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=names[0])
    behind = dcp.async_save(
        {"model": weights, "optimizer": moments},
        checkpoint_id=names[1],
        process_group=dist.new_group(backend="gloo"),  # the training goes on with the others
    )
    at = rank.generator.get_state(), random_state(rank)
    first = len(rank.losses)
    for _ in range(rank.steps // 2):
        step(rank, model, optimizer)
    behind.result()
    final = [tensor.clone() for tensor in full(list(model.parameters()))]
    for name in names:
        again, its_optimizer = sharded(rank)
        for parameter in again.parameters():
            parameter.data.mul_(3.0)
        weights, moments = get_state_dict(again, its_optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=name)
        set_state_dict(
            again,
            its_optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        rank.generator.set_state(at[0])
        set_random_state(rank, at[1])
        began = len(rank.losses)
        for _ in range(rank.steps // 2):
            step(rank, again, its_optimizer)
        assert rank.losses[began:] == rank.losses[first : first + rank.steps // 2], name
        for ours, theirs in zip(full(list(again.parameters())), final, strict=True):
            assert torch.equal(ours, theirs), name
    dist.barrier()
    if rank.number == 0:
        for name in names:
            shutil.rmtree(name)
    return final


def random_state(rank: Rank) -> torch.Tensor:
    return torch.cuda.get_rng_state(rank.device) if rank.proxied else torch.get_rng_state()


def set_random_state(rank: Rank, state: torch.Tensor) -> None:
    if rank.proxied:
        torch.cuda.set_rng_state(state, rank.device)
    else:
        torch.set_rng_state(state)


PROGRAMS: dict[str, Callable[[Rank], Any]] = {
    one.__name__: one for one in (fsdp2, hybrid, zero, accumulate, stored)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", help=f"some of {', '.join(PROGRAMS)}, with commas between")
    parser.add_argument("device", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo")
    rank = Rank(options)
    answer = {}
    for name in options.programs.split(","):
        rank.losses = []
        digest, total = hashlib.sha256(), 0.0
        for tensor in full(PROGRAMS[name](rank)):
            digest.update(tensor.contiguous().numpy().tobytes())
            total += tensor.double().sum().item()
        answer[name] = {"losses": rank.losses, "weights": digest.hexdigest(), "total": total}
    dist.barrier()
    (options.out / f"{rank.number}.json").write_text(json.dumps(answer))
    print("done", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
