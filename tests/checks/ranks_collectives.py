"""Every collective of torch.distributed, against values that each rank computes for itself."""

import functools
import operator

import torch
import torch.distributed as dist
from checks.base import D, check, eq

REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int8, torch.uint8, torch.int32, torch.int64)


def of(rank, *shape, dtype=torch.float32, salt=0):
    """What `rank` brings: small whole numbers, exact in every dtype and in every order."""
    g = torch.Generator().manual_seed(1000 * salt + rank)
    values = torch.randint(0, 4, shape, generator=g)
    if dtype.is_complex:
        return torch.complex(values.double(), values.double() + 1).to(dtype)
    return values.to(dtype)


def mine(*shape, dtype=torch.float32, salt=0):
    return of(dist.get_rank(), *shape, dtype=dtype, salt=salt).to(D)


def all_of(*shape, dtype=torch.float32, salt=0):
    return [of(r, *shape, dtype=dtype, salt=salt) for r in range(dist.get_world_size())]


def fold(tensors, function=operator.add):
    return functools.reduce(function, tensors)


def ranks():
    return range(dist.get_world_size())


@check
def all_reduce_of_every_dtype():
    for dtype in (*REAL, *WHOLE, torch.complex64, torch.complex128):
        t = mine(3, 5, dtype=dtype)
        dist.all_reduce(t)
        eq(t, fold(all_of(3, 5, dtype=dtype)))


@check
def all_reduce_with_every_operation():
    op = dist.ReduceOp
    for dtype in (*REAL, *WHOLE):
        for kind, function in (
            (op.PRODUCT, torch.mul),
            (op.MIN, torch.minimum),
            (op.MAX, torch.maximum),
        ):
            t = mine(7, dtype=dtype)
            dist.all_reduce(t, kind)
            eq(t, fold(all_of(7, dtype=dtype), function))
    for dtype in WHOLE:
        for kind, function in (
            (op.BAND, torch.bitwise_and),
            (op.BOR, torch.bitwise_or),
            (op.BXOR, torch.bitwise_xor),
        ):
            t = mine(7, dtype=dtype)
            dist.all_reduce(t, kind)
            eq(t, fold(all_of(7, dtype=dtype), function))
    for dtype in REAL:
        t = mine(7, dtype=dtype)
        dist.all_reduce(t, op.AVG)
        eq(t, fold(all_of(7, dtype=dtype)) / dist.get_world_size())


@check
def all_reduce_of_booleans():
    for kind, function in (
        (dist.ReduceOp.SUM, torch.logical_or),
        (dist.ReduceOp.MAX, torch.logical_or),
        (dist.ReduceOp.MIN, torch.logical_and),
        (dist.ReduceOp.PRODUCT, torch.logical_and),
    ):
        t = mine(9, dtype=torch.bool)
        dist.all_reduce(t, kind)
        assert t.dtype == torch.bool
        eq(t, fold(all_of(9, dtype=torch.bool), function))


@check
def all_reduce_folds_in_rank_order():
    for dtype in (torch.float32, torch.bfloat16):
        values = []
        for rank in ranks():
            g = torch.Generator().manual_seed(rank)
            values.append(torch.randn(1000, generator=g).to(dtype))
        t = values[dist.get_rank()].to(D)
        dist.all_reduce(t)
        eq(t, fold(values))  # ((r0 + r1) + r2) + r3, bit by bit


@check
def all_reduce_with_factors():
    make = dist._make_nccl_premul_sum
    t = mine(5)
    dist.all_reduce(t, make(0.5))
    eq(t, fold([x * 0.5 for x in all_of(5)]))
    t = mine(5)
    dist.all_reduce(t, make(torch.tensor([2.0], device=D)))
    eq(t, fold([x * 2 for x in all_of(5)]))


@check
def all_reduce_of_views():
    base = torch.zeros(10, device=D)
    base[2:7] = mine(5)
    dist.all_reduce(base[2:7])
    want = torch.zeros(10)
    want[2:7] = fold(all_of(5))
    eq(base, want)
    image = mine(2, 3, 4, 4).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    eq(image, fold(all_of(2, 3, 4, 4)))
    scalar = mine()
    dist.all_reduce(scalar)
    eq(scalar, fold(all_of()))
    dist.all_reduce(torch.empty(0, device=D))


@check
def asynchronous_work():
    t = mine(6)
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    eq(t, fold(all_of(6)))
    t = mine(6, salt=1)
    doubled = dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    eq(doubled.wait(), fold(all_of(6, salt=1)) * 2)
    many = [mine(4, salt=i) for i in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in many]
    for work in works:
        work.wait()
    for i, t in enumerate(many):
        eq(t, fold(all_of(4, salt=i)))
    assert works[0].is_completed()
    assert works[0].result()[0] is not None


@check
def coalesced():
    ts = [mine(3, salt=1), mine(2, 2, salt=2)]
    dist.all_reduce_coalesced(ts)
    eq(ts[0], fold(all_of(3, salt=1)))
    eq(ts[1], fold(all_of(2, 2, salt=2)))
    manager = dist.distributed_c10d._coalescing_manager
    ts = [mine(3, salt=i) for i in range(3)]
    with manager():
        for t in ts:
            dist.all_reduce(t)
    for i, t in enumerate(ts):
        eq(t, fold(all_of(3, salt=i)))
    n = dist.get_world_size()
    gathered = [torch.zeros(n * 2, device=D) for _ in range(2)]
    with manager(async_ops=True) as works:
        for i, out in enumerate(gathered):
            dist.all_gather_into_tensor(out, mine(2, salt=i))
    works.wait()
    for i, out in enumerate(gathered):
        eq(out, torch.cat(all_of(2, salt=i)))
    scattered = [torch.zeros(2, device=D) for _ in range(2)]
    with manager():
        for i, out in enumerate(scattered):
            dist.reduce_scatter_tensor(out, mine(2 * n, salt=i))
    for i, out in enumerate(scattered):
        eq(out, fold(all_of(2 * n, salt=i)).chunk(n)[dist.get_rank()])


@check
def broadcast():
    for root in ranks():
        for dtype in (*REAL, *WHOLE, torch.bool, torch.complex64, torch.float8_e4m3fn):
            t = mine(4, 3, dtype=dtype, salt=root)
            dist.broadcast(t, root)
            eq(t.float() if t.dtype.itemsize == 1 else t, want(t, root))


def want(t, root):
    expected = of(root, 4, 3, dtype=t.dtype, salt=root)
    return expected.float() if t.dtype.itemsize == 1 else expected


@check
def reduce():
    for root in ranks():
        t = mine(6, salt=root)
        dist.reduce(t, root)
        own = of(dist.get_rank(), 6, salt=root)
        eq(t, fold(all_of(6, salt=root)) if dist.get_rank() == root else own)
        t = mine(6, dtype=torch.int64, salt=root)
        dist.reduce(t, root, dist.ReduceOp.MAX)
        if dist.get_rank() == root:
            eq(t, fold(all_of(6, dtype=torch.int64, salt=root), torch.maximum))


@check
def all_gather():
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.float8_e5m2):
        out = [torch.empty(2, 3, device=D).to(dtype) for _ in ranks()]
        dist.all_gather(out, mine(2, 3, dtype=dtype))
        for a, b in zip(out, all_of(2, 3, dtype=dtype), strict=True):
            eq(a.to(torch.complex64), b.to(torch.complex64))
    strided = [torch.zeros(3, 2, device=D).t() for _ in ranks()]
    dist.all_gather(strided, mine(2, 3))
    for a, b in zip(strided, all_of(2, 3), strict=True):
        eq(a, b)


@check
def all_gather_of_different_sizes():
    out = [torch.zeros(r + 1, device=D) for r in ranks()]
    dist.all_gather(out, mine(dist.get_rank() + 1))
    for r, t in enumerate(out):
        eq(t, of(r, r + 1))


@check
def all_gather_into_tensor():
    n = dist.get_world_size()
    out = torch.empty(n * 2, 3, device=D)
    dist.all_gather_into_tensor(out, mine(2, 3))
    eq(out, torch.cat(all_of(2, 3)))
    out = torch.empty(n, 2, 3, device=D)
    dist.all_gather_into_tensor(out, mine(2, 3))
    eq(out, torch.stack(all_of(2, 3)))
    whole = torch.zeros(n * 4, device=D)
    part = whole.chunk(n)[dist.get_rank()]
    part.copy_(mine(4))
    dist.all_gather_into_tensor(whole, part)  # in place
    eq(whole, torch.cat(all_of(4)))


@check
def reduce_scatter():
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = list(mine(n, 4).unbind(0))
    out = torch.empty(4, device=D)
    dist.reduce_scatter(out, parts)
    eq(out, fold(all_of(n, 4))[rank])
    dist.reduce_scatter(out, parts, dist.ReduceOp.AVG)
    eq(out, fold(all_of(n, 4))[rank] / n)
    out = torch.empty(2, 3, device=D)
    dist.reduce_scatter_tensor(out, mine(n * 2, 3))
    eq(out, fold(all_of(n * 2, 3)).chunk(n)[rank])
    uneven = [mine(r + 1, salt=r) for r in ranks()]
    out = torch.empty(rank + 1, device=D)
    dist.reduce_scatter(out, uneven)
    eq(out, fold(all_of(rank + 1, salt=rank)))


@check
def all_to_all():
    n, rank = dist.get_world_size(), dist.get_rank()
    out = [torch.empty(3, device=D) for _ in ranks()]
    dist.all_to_all(out, [mine(3, salt=r) for r in ranks()])
    for r, t in enumerate(out):
        eq(t, of(r, 3, salt=rank))
    out = torch.empty(n * 2, 3, device=D)
    dist.all_to_all_single(out, mine(n * 2, 3))
    eq(out, torch.cat([x.chunk(n)[rank] for x in all_of(n * 2, 3)]))


@check
def all_to_all_with_splits():
    n, rank = dist.get_world_size(), dist.get_rank()
    sends = [(rank + r) % 3 for r in ranks()]  # some are zero
    takes = [(rank + r) % 3 for r in ranks()]
    values = mine(sum(sends), 2)
    out = torch.empty(sum(takes), 2, device=D)
    dist.all_to_all_single(out, values, takes, sends)
    parts = []
    for r in ranks():
        splits = [(r + other) % 3 for other in ranks()]
        parts.append(of(r, sum(splits), 2).split(splits)[rank])
    eq(out, torch.cat(parts))
    lists = [torch.empty(r + rank, device=D) for r in range(n)]
    dist.all_to_all(lists, [mine(rank + r, salt=r) for r in ranks()])
    for r, t in enumerate(lists):
        eq(t, of(r, r + rank, salt=rank))


@check
def gather_and_scatter():
    for root in ranks():
        at_root = dist.get_rank() == root
        out = [torch.empty(2, 2, device=D) for _ in ranks()] if at_root else None
        dist.gather(mine(2, 2), out, root)
        if at_root:
            for a, b in zip(out, all_of(2, 2), strict=True):
                eq(a, b)
        got = torch.empty(2, 2, device=D)
        dist.scatter(got, [mine(2, 2, salt=r) for r in ranks()] if at_root else None, root)
        eq(got, of(root, 2, 2, salt=dist.get_rank()))


@check
def barriers():
    dist.barrier()
    dist.barrier(device_ids=[torch.cuda.current_device()])
    dist.barrier(async_op=True).wait()


@check
def sends_and_receives():
    n, rank = dist.get_world_size(), dist.get_rank()
    after, before = (rank + 1) % n, (rank - 1) % n
    got = torch.empty(5, device=D)
    dist.send(mine(5), after)  # all send before anybody receives
    dist.recv(got, before)
    eq(got, of(before, 5))
    works = [dist.isend(mine(3, salt=i), after) for i in range(3)]
    outs = [torch.empty(3, device=D) for _ in range(3)]
    works += [dist.irecv(t, before) for t in outs]
    for work in works:
        work.wait()
    for i, t in enumerate(outs):
        eq(t, of(before, 3, salt=i))
    strided = torch.zeros(4, 2, device=D)[:, 0]
    dist.send(mine(8)[::2], after)
    dist.recv(strided, before)
    eq(strided, of(before, 8)[::2])


@check
def batches_of_sends():
    n, rank = dist.get_world_size(), dist.get_rank()
    after, before = (rank + 1) % n, (rank - 1) % n
    a, b = torch.empty(4, device=D), torch.empty(2, device=D)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, a, before),
            dist.P2POp(dist.isend, mine(4), after),
            dist.P2POp(dist.irecv, b, after),
            dist.P2POp(dist.isend, mine(2, salt=1), before),
        ]
    )
    for work in works:
        work.wait()
    eq(a, of(before, 4))
    eq(b, of(after, 2, salt=1))


@check
def objects():
    n, rank = dist.get_world_size(), dist.get_rank()
    everything = [None] * n
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank})
    assert everything == [{"rank": r, "text": "x" * r} for r in range(n)], everything
    values = ["a", 5, {"b": (1, 2)}] if rank == 0 else [None] * 3
    dist.broadcast_object_list(values, 0)
    assert values == ["a", 5, {"b": (1, 2)}]
    gathered = [None] * n if rank == n - 1 else None
    dist.gather_object(rank * 10, gathered, n - 1)
    assert gathered is None or gathered == [r * 10 for r in range(n)]
    one = [None]
    dist.scatter_object_list(one, [f"to {r}" for r in range(n)] if rank == 0 else None, 0)
    assert one == [f"to {rank}"]


@check
def objects_on_the_device():
    n, rank = dist.get_world_size(), dist.get_rank()
    group = dist.new_group(backend="nccl")
    everything = [None] * n
    dist.all_gather_object(everything, [rank] * rank, group=group)
    assert everything == [[r] * r for r in range(n)]
    values = [torch.arange(3), "b"] if rank == 1 else [None] * 2
    dist.broadcast_object_list(values, 1, group=group)
    assert values[1] == "b"
    assert values[0].tolist() == [0, 1, 2]
    if rank == 0:
        dist.send_object_list([1, "two"], 1, group=group)
    elif rank == 1:
        got = [None, None]
        dist.recv_object_list(got, 0, group=group)
        assert got == [1, "two"]


@check
def functional_collectives():
    import torch.distributed._functional_collectives as f

    n, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    eq(f.all_reduce(mine(3), "sum", group) + 0, fold(all_of(3)))
    eq(f.all_gather_tensor(mine(2, 3), 0, group) + 0, torch.cat(all_of(2, 3)))
    eq(
        f.reduce_scatter_tensor(mine(n * 2), "avg", 0, group) + 0,
        fold(all_of(n * 2)).chunk(n)[rank] / n,
    )
    eq(f.broadcast(mine(3), 0, group) + 0, of(0, 3))
    out = f.all_to_all_single(mine(n * 2), None, None, group)
    eq(out + 0, torch.cat([x.chunk(n)[rank] for x in all_of(n * 2)]))


@check
def collectives_with_gradients():
    import torch.distributed.nn.functional as f

    x = mine(3).requires_grad_()
    y = f.all_reduce(x * (dist.get_rank() + 1))
    eq(y.detach(), fold([t * (r + 1) for r, t in enumerate(all_of(3))]))
    y.sum().backward()
    eq(x.grad, torch.full((3,), float(dist.get_world_size() * (dist.get_rank() + 1))))
