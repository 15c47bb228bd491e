"""Memory of torch.cuda and torch.accelerator. Unchanged user code that says "cuda"; one function is one check."""

import copy
import gc
import warnings

import torch
from checks.base import D, check, close, raises
from torch import nn

MIB = 1 << 20


@check
def memory_follows_tensors():
    before = torch.cuda.memory_allocated()
    x = torch.empty(MIB, device=D)  # nobody waited for it yet
    assert torch.cuda.memory_allocated() - before == 4 * MIB
    y = x * 2
    assert torch.cuda.memory_allocated() - before == 8 * MIB
    z = y.view(-1)[1:]
    del x, y
    assert torch.cuda.memory_allocated() - before == 4 * MIB
    del z
    assert torch.cuda.memory_allocated() == before


@check
def memory_of_grown_storages():
    before = torch.cuda.memory_allocated()
    out = torch.empty(0, device=D)
    x = torch.ones(MIB, device=D)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.add(x, x, out=out)
        torch.add(x, x, out=out)
    assert torch.cuda.memory_allocated() - before == 8 * MIB
    out.resize_(2 * MIB)
    assert torch.cuda.memory_allocated() - before == 12 * MIB
    out.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() - before == 4 * MIB
    del out, x
    assert torch.cuda.memory_allocated() == before


@check
def memory_peak():
    x = torch.ones(MIB, device=D)
    x * 3
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.max_memory_allocated()
    assert base == torch.cuda.memory_allocated()
    y = x * 2
    del y
    torch.cuda.synchronize()
    # A little more: what the operator used inside.
    assert 4 * MIB <= torch.cuda.max_memory_allocated() - base < 4 * MIB + 65536
    assert torch.cuda.memory_allocated() == base
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == base


@check
def memory_counters():
    torch.cuda.reset_accumulated_memory_stats()
    start = torch.cuda.memory_stats()
    x = [torch.ones(2 * MIB, device=D), torch.ones(8, device=D)]
    stats = torch.cuda.memory_stats()
    for name, large, small in (("allocated_bytes", 8 * MIB, 32), ("allocation", 1, 1)):
        for pool, more in (("all", large + small), ("large_pool", large), ("small_pool", small)):
            key = f"{name}.{pool}."
            assert stats[key + "current"] - start[key + "current"] == more, key
            assert stats[key + "allocated"] == more, key
            assert stats[key + "freed"] == 0, key
    del x
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.freed"] == 2
    assert stats["allocation.all.current"] == start["allocation.all.current"]
    assert stats["num_alloc_retries"] == stats["num_ooms"] == 0
    assert stats["reserved_bytes.all.current"] >= stats["allocated_bytes.all.current"]


@check
def memory_summary_and_snapshot():
    x = torch.ones(MIB, device=D)
    text = torch.cuda.memory_summary()
    assert "Allocated memory" in text and "iB" in text
    torch.cuda.memory_summary(abbreviated=True)
    snapshot = torch.cuda.memory_snapshot()
    assert sum(s["allocated_size"] for s in snapshot) == torch.cuda.memory_allocated()
    assert torch.cuda.memory.list_gpu_processes().count("process") == 1
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total and total - free >= x.nbytes
    assert torch.cuda.device_memory_used() >= x.nbytes
    assert torch.cuda.get_device_properties(0).total_memory == total
    assert torch.cuda.memory_reserved() >= x.nbytes
    torch.cuda.host_memory_stats()
    assert torch.cuda.get_allocator_backend() == "native"


@check
def accelerator_memory():
    m = torch.accelerator
    x = torch.ones(MIB, device=D)
    m.empty_cache()
    assert m.memory_allocated() == torch.cuda.memory_allocated() >= x.nbytes
    assert m.max_memory_allocated() >= m.memory_allocated()
    assert m.memory_reserved() >= m.memory_allocated()
    m.reset_peak_memory_stats()
    m.reset_accumulated_memory_stats()
    assert m.memory_stats()["allocation.all.current"] >= 1
    if hasattr(m, "get_memory_info"):
        free, total = m.get_memory_info()
        assert 0 < free < total


@check
def memory_fraction():
    _, total = torch.cuda.mem_get_info()
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    torch.cuda.set_per_process_memory_fraction(0.125)
    try:
        assert torch.cuda.get_per_process_memory_fraction() == 0.125
        raises(
            torch.OutOfMemoryError,
            "allowed",
            lambda: torch.empty(total // 4, dtype=torch.uint8, device=D),
        )
        torch.empty(total // 16, dtype=torch.uint8, device=D)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(total // 4, dtype=torch.uint8, device=D)


@check
def out_of_memory_is_survived():
    torch.manual_seed(0)
    _, total = torch.cuda.mem_get_info()
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).cuda()
    twin = copy.deepcopy(model).cpu()
    ooms = torch.cuda.memory_stats()["num_ooms"]
    before = torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction((before + 256 * MIB) / total)
    batch, failures = 1 << 21, []
    while True:
        x = loss = None
        try:
            x = torch.ones(batch, 64, device=D)
            loss = model(x).square().mean()
            loss.backward()
            break
        except torch.OutOfMemoryError as error:
            assert "CUDA out of memory" in str(error)
            failures.append("input" if x is None else "inside")
            batch //= 16
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert failures == ["input", "inside"] and batch == 8192
    assert torch.cuda.memory_stats()["num_ooms"] - ooms == 2
    twin(torch.ones(batch, 64)).square().mean().backward()
    for a, b in zip(model.parameters(), twin.parameters()):
        close(a.grad, b.grad, 1e-4)
    model.zero_grad()
    del x, loss
    gc.collect()
    assert torch.cuda.memory_allocated() == before  # and all of it is back
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] >= total - before - MIB


@check
def address_is_used_by_one_tensor_at_a_time():
    keep = [torch.empty(n, device=D) for n in (1, 1000, 300_000)]
    spans = {(t.data_ptr(), t.data_ptr() + t.nbytes) for t in keep}
    used = set()
    for _ in range(50):
        fresh = [torch.empty(n, device=D) for n in (1, 1000, 300_000, 5)]
        now = sorted([*spans, *((t.data_ptr(), t.data_ptr() + t.nbytes) for t in fresh)])
        assert all(a[1] <= b[0] for a, b in zip(now, now[1:]))
        used.add(fresh[2].data_ptr())
    assert len(used) <= 8  # and again by the next one
