"""Errors of collectives: those of NCCL's front end, and those that are found in the proxies."""

import torch
import torch.distributed as dist
from checks.base import D, check, eq, raises
from checks.ranks_collectives import all_of, fold, mine


def group():
    return dist.new_group(backend="nccl")


@check
def tensors_that_are_not_taken():
    g = group()
    raises(ValueError, "contiguous", lambda: dist.all_reduce(mine(4, 4).t()[1:], group=g))
    sparse = mine(4, 4).to_sparse().coalesce()
    raises(NotImplementedError, "sparse", lambda: dist.all_reduce(sparse, group=g))
    raises(TypeError, "Short", lambda: dist.all_reduce(mine(4).short(), group=g))
    raises(RuntimeError, "Float8", lambda: dist.all_reduce(mine(4).to(torch.float8_e5m2), group=g))
    raises(
        TypeError, "boolean", lambda: dist.all_reduce(mine(4).bool(), dist.ReduceOp.AVG, group=g)
    )
    raises(ValueError, "bitwise", lambda: dist.all_reduce(mine(4), dist.ReduceOp.BAND, group=g))
    raises(
        RuntimeError, "No backend type associated with device type cpu",
        lambda: dist.all_reduce(torch.ones(2), group=g),
    )  # fmt: skip
    n = dist.get_world_size()
    raises(
        ValueError, "world_size times",
        lambda: dist.all_gather_into_tensor(torch.empty(n * 3, device=D), mine(2), group=g),
    )  # fmt: skip
    raises(
        ValueError, "world size",
        lambda: dist.reduce_scatter_tensor(torch.empty(2, device=D), mine(2 * n + 1), group=g),
    )  # fmt: skip
    raises(
        ValueError, "a tensor for each",
        lambda: dist.all_gather([torch.empty(2, device=D)] * (n + 1), mine(2), group=g),
    )  # fmt: skip
    raises(
        RuntimeError, "Split sizes",
        lambda: dist.all_to_all_single(
            torch.empty(n, device=D), mine(n), [1] * n, [2] * n, group=g
        ),
    )  # fmt: skip
    raises(ValueError, "GLOO", lambda: dist.monitored_barrier(g))
    t = mine(3)  # nothing of this was sent
    dist.all_reduce(t, group=g)
    eq(t, fold(all_of(3)))


@check
def contributions_that_do_not_fit():
    g = group()
    try:
        dist.all_reduce(torch.ones(dist.get_rank() + 1, device=D), group=g)
        torch.cuda.synchronize()
    except RuntimeError as error:
        assert "all_reduce" in str(error), error
    else:
        return "no error"
    t = mine(3)  # another group goes on
    dist.all_reduce(t, group=group())
    eq(t, fold(all_of(3)))
