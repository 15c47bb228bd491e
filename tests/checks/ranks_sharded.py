"""Sharded training and checkpoints: FSDP2, DTensor, tensor parallelism, torch.distributed.checkpoint."""

import copy
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks.base import D, check, close, eq
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


def mesh():
    return init_device_mesh("cuda", (dist.get_world_size(),))


def net():
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )


def data(step, n=4):
    g = torch.Generator().manual_seed(step)
    world = dist.get_world_size()
    return torch.randn(world * n, 8, generator=g), torch.randint(0, 4, (world * n,), generator=g)


def reference(steps=3):
    """One process that sees all batches."""
    model = net()
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        x, y = data(step)
        F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
    return model


def sharded(steps=3, **options):
    from torch.distributed.fsdp import fully_shard

    model = net().to(D)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh(), **options)
    fully_shard(model, mesh=mesh(), **options)
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(steps):
        x, y = (t.chunk(world)[rank].to(D) for t in data(step))
        F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
    return model, opt


@check
def fsdp2():
    model, _ = sharded()
    for ours, theirs in zip(model.parameters(), reference().parameters(), strict=True):
        close(ours.full_tensor().detach(), theirs.detach(), 1e-4)


@check
def fsdp2_keeps_parameters_after_forward():
    model, _ = sharded(reshard_after_forward=False)
    for ours, theirs in zip(model.parameters(), reference().parameters(), strict=True):
        close(ours.full_tensor().detach(), theirs.detach(), 1e-4)


@check
def fsdp2_with_mixed_precision():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model, _ = sharded(
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    )
    for ours, theirs in zip(model.parameters(), reference().parameters(), strict=True):
        close(ours.full_tensor().detach(), theirs.detach(), 5e-2)


@check
def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    model = FSDP(net().to(D), device_id=torch.cuda.current_device())
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(3):
        x, y = (t.chunk(world)[rank].to(D) for t in data(step))
        F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
    with FSDP.summon_full_params(model):
        for ours, theirs in zip(model.parameters(), reference().parameters(), strict=True):
            close(ours.detach(), theirs.detach(), 1e-4)


@check
def dtensor():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    world = dist.get_world_size()
    full = torch.arange(world * 6.0).reshape(world * 2, 3)
    one = distribute_tensor(full.to(D), mesh(), [Shard(0)])
    eq(one.full_tensor(), full)
    eq(one.redistribute(placements=[Replicate()]).to_local(), full)
    eq((one + one).full_tensor(), full * 2)
    assert one.sum().full_tensor().item() == full.sum().item()


@check
def tensor_parallel():
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    torch.manual_seed(1)
    for p in model.parameters():
        nn.init.normal_(p)
    split = copy.deepcopy(model).to(D)
    parallelize_module(split, mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
    close(split(x.to(D)).detach(), model(x).detach(), 1e-4)
    split(x.to(D)).sum().backward()
    model(x).sum().backward()
    close(split[0].weight.grad.full_tensor(), model[0].weight.grad, 1e-4)


@check
def pipeline():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    layers = [nn.Linear(8, 8) for _ in range(world)]
    device = torch.device("cuda", torch.cuda.current_device())
    stage = PipelineStage(copy.deepcopy(layers[rank]).to(device), rank, world, device)
    schedule = ScheduleGPipe(stage, 2, loss_fn=F.mse_loss)
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
    y = torch.zeros(8, 8)
    if rank == 0 and world == 1:
        out = schedule.step(x.to(D), target=y.to(D))
    elif rank == 0:
        schedule.step(x.to(D))
        out = None
    elif rank == world - 1:
        out = schedule.step(target=y.to(D))
    else:
        schedule.step()
        out = None
    if out is not None:
        close(out.detach(), nn.Sequential(*layers)(x).detach(), 1e-4)


@check
def distributed_checkpoint():
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, opt = sharded()
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    weights, moments = get_state_dict(model, opt)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder[0])
    other, other_opt = sharded(steps=1)
    weights, moments = get_state_dict(other, other_opt)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=folder[0])
    set_state_dict(
        other, other_opt, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    for a, b in zip(other.parameters(), model.parameters(), strict=True):
        eq(a.full_tensor().detach(), b.full_tensor().detach())
    dist.barrier()
    if dist.get_rank() == 0:
        for name in os.listdir(folder[0]):
            os.unlink(os.path.join(folder[0], name))
        os.rmdir(folder[0])
