"""Data-parallel training: the same steps on host tensors with gloo, and on the device."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks.base import D, check, close, eq
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)
        self.norm = nn.BatchNorm1d(16)
        self.spare = nn.Linear(16, 3)

    def forward(self, x, spare=False):
        x = self.norm(self.first(x)).relu()
        return self.spare(x) if spare else self.second(x)


def batch(step, device):
    g = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(8, 6, generator=g).to(device), torch.randint(0, 3, (8,), generator=g).to(
        device
    )


def train(device, steps=4, options=None, forward=None, prepare=None, optimizer=None, clip=None):
    """Losses and parameters after a few steps of the same training."""
    torch.manual_seed(7 + dist.get_rank())  # different ones: DDP makes them equal
    net = Net().to(device)
    ids = [device.index] if device.type == "cuda" else None
    options = {"find_unused_parameters": True, **(options or {})}
    model = DDP(net, device_ids=ids, **options)
    if prepare:
        prepare(model)
    # Not Adam: the bias before the normalisation has no gradient but noise, which Adam scales up.
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    opt = make(model.parameters())
    losses = []
    for step in range(steps):
        x, y = batch(step, device)
        loss = forward(model, x, y, step) if forward else F.cross_entropy(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        opt.zero_grad()
        losses.append(loss.detach().cpu())
    return torch.stack(losses), [p.detach().cpu() for p in net.parameters()], net


def compare(**options):
    host = train(torch.device("cpu"), **options)
    device = train(torch.device("cuda", torch.cuda.current_device()), **options)
    close(device[0], host[0], 1e-4)
    for a, b in zip(device[1], host[1], strict=True):
        close(a, b, 1e-4)
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, [p.tolist() for p in device[1]])
    assert all(one == every[0] for one in every), "the ranks' parameters differ"


@check
def ddp():
    compare()


@check
def ddp_is_the_same_again():
    device = torch.device("cuda", torch.cuda.current_device())
    a, b = train(device), train(device)
    eq(a[0], b[0])
    for x, y in zip(a[1], b[1], strict=True):
        eq(x, y)


@check
def ddp_gradients_fold_in_rank_order():
    n, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(3)
    net = nn.Linear(6, 3)
    grads = []
    for r in range(n):
        one = copy.deepcopy(net).to(D)
        g = torch.Generator().manual_seed(r)
        one(torch.randn(8, 6, generator=g).to(D)).square().mean().backward()
        grads.append([p.grad.cpu() / n for p in one.parameters()])
    model = DDP(copy.deepcopy(net).to(D), device_ids=[torch.cuda.current_device()])
    g = torch.Generator().manual_seed(rank)
    model(torch.randn(8, 6, generator=g).to(D)).square().mean().backward()
    for i, p in enumerate(model.parameters()):
        want = grads[0][i]
        for other in grads[1:]:
            want = want + other[i]
        eq(p.grad, want)


@check
def ddp_with_several_buckets():
    compare(options={"bucket_cap_mb": 0.0002})


@check
def ddp_with_bucket_views():
    compare(options={"gradient_as_bucket_view": True})


@check
def ddp_with_a_static_graph():
    compare(options={"static_graph": True, "find_unused_parameters": False}, forward=both_heads)


def both_heads(model, x, y, step):
    return F.cross_entropy(model(x), y) + F.cross_entropy(model(x, spare=True), y)


@check
def ddp_without_buffers():
    compare(options={"broadcast_buffers": False})


@check
def ddp_accumulates_without_sync():
    def forward(model, x, y, step):
        halves = list(zip(x.chunk(2), y.chunk(2), strict=True))
        with model.no_sync():
            F.cross_entropy(model(halves[0][0]), halves[0][1]).backward()
        return F.cross_entropy(model(halves[1][0]), halves[1][1])

    compare(forward=forward)


@check
def ddp_finds_unused_parameters():
    def forward(model, x, y, step):
        return F.cross_entropy(model(x, spare=bool((step + dist.get_rank()) % 2)), y)

    compare(forward=forward)


@check
def ddp_with_compressed_gradients():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def prepare(model):
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)

    host = train(torch.device("cpu"))
    device = train(torch.device("cuda", torch.cuda.current_device()), prepare=prepare)
    close(device[0], host[0], 1e-2)
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, [p.tolist() for p in device[1]])
    assert all(one == every[0] for one in every)


@check
def ddp_with_hooks_of_its_own():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def allreduce(model):
        model.register_comm_hook(None, default_hooks.allreduce_hook)

    compare(prepare=allreduce)

    def power(model):
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    losses, _, _ = train(torch.device("cuda", torch.cuda.current_device()), prepare=power)
    assert torch.isfinite(losses).all()


@check
def ddp_joins_uneven_inputs():
    def run(device):
        torch.manual_seed(1)
        model = DDP(nn.Linear(6, 3).to(device))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(2 + dist.get_rank()):
                x, y = batch(step, device)
                F.cross_entropy(model(x), y).backward()
                opt.step()
                opt.zero_grad()
        return [p.detach().cpu() for p in model.parameters()]

    host = run(torch.device("cpu"))
    for a, b in zip(run(torch.device("cuda", torch.cuda.current_device())), host, strict=True):
        close(a, b, 1e-4)


@check
def ddp_synchronises_batch_norm():
    device = torch.device("cuda", torch.cuda.current_device())
    n, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(1)
    net = nn.BatchNorm1d(6)
    model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(net)).to(device))
    xs = [torch.randn(8, 6, generator=torch.Generator().manual_seed(r)) for r in range(n)]
    ours = model(xs[rank].to(device))
    close(ours.detach(), net(torch.cat(xs)).chunk(n)[rank].detach(), 1e-5)
    ours.square().sum().backward()
    close(model.module.running_mean, net.running_mean)


@check
def ddp_with_mixed_precision():
    def forward(model, x, y, step):
        with torch.autocast(x.device.type, torch.bfloat16):
            return F.cross_entropy(model(x), y)

    losses, _, _ = train(torch.device("cuda", torch.cuda.current_device()), forward=forward)
    assert torch.isfinite(losses).all()


@check
def zero_redundancy_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def optimizer(parameters):
        return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=0.01)

    device = torch.device("cuda", torch.cuda.current_device())

    def one_of_all(parameters):
        return torch.optim.AdamW(parameters, lr=0.01)

    sharded = train(device, optimizer=optimizer)
    whole = train(device, optimizer=one_of_all)
    eq(sharded[0], whole[0])
    for a, b in zip(sharded[1], whole[1], strict=True):
        eq(a, b)


@check
def distributed_sampler():
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    data = TensorDataset(torch.arange(40).float())
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    seen = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=5, sampler=sampler):
            seen.append(x.to(D).sum())
    total = torch.stack(seen).sum()
    dist.all_reduce(total)
    assert total.item() == 2 * sum(range(40)), total


@check
def gradients_are_clipped_alike():
    compare(clip=0.1)
