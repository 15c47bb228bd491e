"""Groups: several of them, sub-groups, backends, meshes."""

import datetime

import torch
import torch.distributed as dist
from checks.base import check, eq
from checks.ranks_collectives import all_of, fold, mine, of, ranks


@check
def names_and_classes():
    assert dist.is_nccl_available()
    assert torch.cuda.nccl.version()[0] >= 2
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.min_ctas = 4
    assert options.is_high_priority_stream
    assert options.config.min_ctas == 4
    group = dist.new_group(backend="nccl", pg_options=options)
    assert dist.get_backend(group) == "nccl"
    backend = group._get_backend(torch.device("cuda"))
    assert isinstance(backend, dist.ProcessGroupNCCL)
    assert isinstance(backend, dist.distributed_c10d.ProcessGroupNCCL)
    assert backend.name() == "nccl"
    assert (backend.rank(), backend.size()) == (dist.get_rank(), dist.get_world_size())
    assert backend.options._timeout == datetime.timedelta(minutes=10), backend.options._timeout
    assert backend.options.global_ranks_in_group == list(ranks())
    world = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert not isinstance(world, dist.ProcessGroupNCCL)


@check
def host_and_device_tensors_in_one_group():
    host, device = mine(4).cpu(), mine(4)
    dist.all_reduce(host)
    dist.all_reduce(device)
    eq(host, device)


@check
def backends_by_device():
    group = dist.new_group(backend="cpu:gloo,cuda:nccl")
    host, device = mine(4).cpu(), mine(4)
    dist.all_reduce(host, group=group)
    dist.all_reduce(device, group=group)
    eq(host, device)


@check
def gloo_with_device_tensors():
    group = dist.new_group(backend="gloo")
    assert dist.get_backend(group) == "gloo"
    host, device = mine(4).cpu(), mine(4)
    dist.all_reduce(host, group=group)
    dist.all_reduce(device, group=group)
    eq(host, device)
    dist.barrier(group=group)


@check
def sub_groups():
    n, rank = dist.get_world_size(), dist.get_rank()
    pairs = [dist.new_group([r, (r + 1) % n]) for r in ranks()]  # overlapping ones
    for first, group in enumerate(pairs):
        members = sorted({first, (first + 1) % n})
        if rank not in members:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
            continue
        t = mine(3, salt=first)
        dist.all_reduce(t, group=group)
        eq(t, fold([of(r, 3, salt=first) for r in members]))
        t = mine(3, salt=first)
        dist.broadcast(t, members[-1], group=group)
        eq(t, of(members[-1], 3, salt=first))


@check
def groups_are_independent():
    a, b = dist.new_group(), dist.new_group()
    order = [a, b] if dist.get_rank() % 2 else [b, a]  # not the same in all ranks
    sums = {}
    for group in order:
        sums[group] = mine(3, salt=1 if group is a else 2)
        dist.all_reduce(sums[group], group=group)
    eq(sums[a], fold(all_of(3, salt=1)))
    eq(sums[b], fold(all_of(3, salt=2)))


@check
def group_of_one():
    rank = dist.get_rank()
    groups = [dist.new_group([r]) for r in ranks()]
    t = mine(3)
    dist.all_reduce(t, group=groups[rank])
    eq(t, of(rank, 3))
    dist.barrier(group=groups[rank])


@check
def many_groups_come_and_go():
    for i in range(10):
        group = dist.new_group(backend="nccl")
        t = mine(2, salt=i)
        dist.all_reduce(t, group=group)
        eq(t, fold(all_of(2, salt=i)))
        dist.destroy_process_group(group)


@check
def a_group_that_is_gone_says_so():
    group = dist.new_group(backend="nccl")
    backend = group._get_backend(torch.device("cuda"))
    dist.barrier(group=group)
    dist.destroy_process_group(group)
    try:
        backend.allreduce([mine(2)])
    except dist.DistBackendError as error:
        assert "destroyed" in str(error)
    else:
        return "no error"


@check
def an_aborted_group_leaves_the_others_alone():
    group = dist.new_group(backend="nccl")
    t = mine(2)
    dist.all_reduce(t, group=group)
    eq(t, fold(all_of(2)))
    dist.distributed_c10d._abort_process_group(group)
    t = mine(2)
    dist.all_reduce(t)
    eq(t, fold(all_of(2)))


@check
def another_timeout():
    group = dist.new_group(backend="nccl", timeout=datetime.timedelta(seconds=30))
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=50), group)
    t = mine(2)
    dist.all_reduce(t, group=group)
    eq(t, fold(all_of(2)))
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=40), group)
    dist.barrier(group=group)


@check
def mesh():
    n = dist.get_world_size()
    if n % 2:
        return "ok: needs an even number of ranks"
    from torch.distributed.device_mesh import init_device_mesh

    grid = init_device_mesh("cuda", (2, n // 2), mesh_dim_names=("dp", "tp"))
    row, column = divmod(dist.get_rank(), n // 2)
    t = mine(3)
    dist.all_reduce(t, group=grid.get_group("tp"))
    eq(t, fold([of(row * (n // 2) + c, 3) for c in range(n // 2)]))
    t = mine(3)
    dist.all_reduce(t, group=grid.get_group("dp"))
    eq(t, fold([of(r * (n // 2) + column, 3) for r in range(2)]))
