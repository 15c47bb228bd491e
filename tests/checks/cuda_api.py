"""The rest of torch.cuda and torch.accelerator. Unchanged user code that says "cuda"; one function is one check."""

import copy
import pickle
import time

import torch
from checks.base import D, check, close, eq, raises
from torch import nn


@check
def accelerator_streams_and_devices():
    a = torch.accelerator
    assert a.current_device_index() == 0 and a.device_count() >= 1
    a.set_device_index(0)
    s = torch.Stream(device=D)
    a.set_stream(s)
    assert a.current_stream() == s
    y = torch.ones(3, device=D) + 1
    a.set_stream(torch.cuda.default_stream())
    a.synchronize()
    eq(y, torch.full((3,), 2.0))


@check
def generic_events_and_streams():
    a, b = (torch.Event(device=D, enable_timing=True) for _ in range(2))
    s = torch.Stream(device=D)
    with s:
        a.record()
        x = torch.randn(300, 300, device=D)
        x @ x
        b.record()
    torch.cuda.current_stream().wait_event(b)
    s.synchronize()
    b.synchronize()
    assert b.query() and s.query()
    assert 0 < a.elapsed_time(b) < 60_000
    s.wait_stream(torch.cuda.current_stream())
    e = s.record_event()
    e.wait(s)


@check
def event_order_and_time():
    a, b, c = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    assert isinstance(a, torch.Event) and a.query()
    a.record()
    x = torch.randn(400, 400, device=D)
    for _ in range(10):
        x = (x @ x).clamp(-1, 1)
    b.record()
    time.sleep(0.05)
    c.record()
    c.synchronize()
    assert a.query() and b.query()
    work, pause = a.elapsed_time(b), b.elapsed_time(c)
    assert work > 0 and pause > 0
    assert abs(a.elapsed_time(c) - work - pause) < 1e-3
    assert a.cuda_event != b.cuda_event
    untimed = torch.cuda.Event()
    untimed.record()
    raises(ValueError, "enable_timing", lambda: untimed.elapsed_time(b))
    late = torch.cuda.Event(enable_timing=True)
    raises((ValueError, RuntimeError), "recorded", lambda: a.elapsed_time(late))


@check
def streams_are_named():
    s, t = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    assert s != t and s == s and t.priority == -1 and s.priority == 0
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    with torch.cuda.stream(s):
        assert torch.cuda.current_stream() == s
        with torch.cuda.stream(t):
            assert torch.cuda.current_stream() == t
        x = torch.ones(3, device=D)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    t.wait_stream(s)
    with torch.cuda.stream(t):
        y = x + 1
    t.synchronize()
    eq(y, torch.full((3,), 2.0))
    with torch.cuda.stream(None):
        pass
    raises(RuntimeError, "another library", lambda: torch.cuda.ExternalStream(4096))
    raises(RuntimeError, "interprocess", lambda: torch.cuda.Event(interprocess=True))


@check
def rng_of_each_device():
    torch.cuda.manual_seed_all(7)
    assert torch.cuda.initial_seed() == 7
    states = torch.cuda.get_rng_state_all()
    assert len(states) == torch.cuda.device_count()
    a = torch.rand(5, device=D)
    torch.cuda.set_rng_state_all(states)
    eq(torch.rand(5, device=D), a)
    torch.manual_seed(8)
    torch.cuda.set_rng_state(states[0])
    assert torch.cuda.initial_seed() == 7
    with torch.random.fork_rng():
        b = torch.rand(5, device=D)
        torch.rand(3, device=D)
    eq(torch.rand(5, device=D), b)
    torch.cuda.seed_all()
    assert torch.cuda.initial_seed() != 7
    torch.cuda.seed()


@check
def rng_generators():
    g = torch.Generator(D).manual_seed(11)
    assert g.initial_seed() == 11 and g.device == torch.device(D, 0)
    h = g.clone_state()
    eq(torch.rand(4, device=D, generator=g), torch.rand(4, device=D, generator=h))
    state = g.get_state()
    a = torch.randn(4, device=D, generator=g)
    g.set_state(state)
    eq(torch.randn(4, device=D, generator=g), a)
    raises(RuntimeError, "graph", g.graphsafe_get_state)
    raises(RuntimeError, "offset", g.get_offset)
    for i in range(300):  # they end with their names
        torch.rand(1, device=D, generator=torch.Generator(D).manual_seed(i))


@check
def default_device_and_dtype():
    torch.set_default_device(D)
    try:
        assert torch.ones(2).is_cuda and nn.Linear(2, 2).weight.is_cuda
        with torch.device("cpu"):
            assert not torch.ones(2).is_cuda
    finally:
        torch.set_default_device(None)
    assert isinstance(torch.ones(2, device=D), torch.cuda.FloatTensor)


@check
def settings_reach_the_device():
    i, j = torch.arange(3, device=D), torch.arange(3)
    for dtype in (torch.float64, torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            assert (i / 2).dtype == dtype and i.float().mean().dtype == torch.float32
            assert torch.sqrt(i).dtype == torch.sqrt(j).dtype == dtype
            assert (i * 1.5).dtype == dtype
            eq(i / 3, j / 3)
        finally:
            torch.set_default_dtype(torch.float32)
    assert (i / 2).dtype == torch.float32


@check
def deterministic_algorithms():
    x = torch.zeros(4, device=D)
    index = torch.tensor([0, 0, 1], device=D)
    values = torch.ones(3, device=D)
    x.put_(index, values)
    torch.use_deterministic_algorithms(True)
    try:
        for kind in (torch.float32, torch.bfloat16):
            assert torch.empty(3, dtype=kind, device=D).isnan().all()
        assert (torch.empty(3, dtype=torch.int64, device=D) == torch.iinfo(torch.int64).max).all()
        y = torch.zeros(2, device=D)
        y.resize_(4)
        assert y[2:].isnan().all() and not y[:2].isnan().any()
        x.put_(index, values, accumulate=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.empty(3, device=D)
        torch.utils.deterministic.fill_uninitialized_memory = True
        raises(RuntimeError, "deterministic", lambda: x.put_(index, values))
        torch.use_deterministic_algorithms(True, warn_only=True)
        x.put_(index, values)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
    x.put_(index, values)
    torch.cuda.synchronize()


@check
def attention_backends():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 2, 6, 8)
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            chosen = torch._fused_sdp_choice(q.cuda(), q.cuda(), q.cuda())
            assert chosen == torch._fused_sdp_choice(q, q, q) == backend.value, (chosen, backend)
            close(
                torch.nn.functional.scaled_dot_product_attention(q.cuda(), q.cuda(), q.cuda()),
                torch.nn.functional.scaled_dot_product_attention(q, q, q),
            )
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        torch.nn.functional.scaled_dot_product_attention(q.cuda(), q.cuda(), q.cuda())


@check
def library_flags():
    b = torch.backends
    with b.cudnn.flags(enabled=True, benchmark=True, deterministic=True, allow_tf32=False):
        nn.Conv2d(1, 1, 2).cuda()(torch.ones(1, 1, 4, 4, device=D))
    b.cudnn.benchmark_limit = 5
    assert b.cudnn.benchmark_limit == 5
    b.cudnn.benchmark_limit = 10
    assert b.cudnn.is_available() == (b.cudnn.version() is not None)
    old = b.cuda.preferred_linalg_library()
    for name in ("cusolver", "default"):
        b.cuda.preferred_linalg_library(name)
        torch.linalg.inv(torch.eye(3, device=D))
    b.cuda.preferred_linalg_library(old)
    b.cuda.preferred_blas_library("cublas")
    torch.ones(3, 3, device=D) @ torch.ones(3, 3, device=D)
    b.cuda.preferred_blas_library("default")
    b.cuda.matmul.allow_tf32 = False
    b.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    b.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    with torch.backends.mkldnn.flags(enabled=False):
        torch.ones(3, 3, device=D) @ torch.ones(3, 3, device=D)
    for precision in ("high", "medium", "highest"):
        torch.set_float32_matmul_precision(precision)
        torch.ones(3, 3, device=D) @ torch.ones(3, 3, device=D)
    plans = b.cuda.cufft_plan_cache
    assert plans.size == 0
    plans.max_size = 7
    assert plans.max_size == 7
    plans.clear()
    plans.max_size = 4096


@check
def new_precision_flags():
    b = torch.backends
    if not hasattr(b.cuda.matmul, "fp32_precision"):
        return
    x = torch.randn(8, 8, device=D)
    b.cuda.matmul.fp32_precision = "tf32"
    try:
        x @ x
        b.cudnn.conv.fp32_precision = "tf32"
        nn.Conv2d(1, 1, 2).cuda()(torch.ones(1, 1, 4, 4, device=D))
    finally:
        b.cuda.matmul.fp32_precision = "ieee"
        b.cudnn.conv.fp32_precision = "tf32"
    x @ x
    torch.cuda.synchronize()


@check
def health_is_refused():
    for name in ("utilization", "temperature", "power_draw", "clock_rate", "memory_usage"):
        raises(RuntimeError, "jupyter singularity nodes", getattr(torch.cuda, name))
    raises(RuntimeError, "time.sleep", lambda: torch.cuda._sleep(10))


@check
def graphs_are_refused():
    model = nn.Linear(2, 2).cuda()
    raises(RuntimeError, "eagerly", torch.cuda.CUDAGraph)
    raises(RuntimeError, "eagerly", torch.cuda.graph_pool_handle)
    raises(
        RuntimeError,
        "eagerly",
        lambda: torch.cuda.make_graphed_callables(model, (torch.ones(1, 2, device=D),)),
    )
    assert not torch.cuda.is_current_stream_capturing()
    raises(RuntimeError, "proxy owns", torch.cuda.MemPool)
    raises(RuntimeError, "inside this process", torch.cuda.current_blas_handle)
    raises(RuntimeError, "kernels", lambda: torch.cuda.tunable.enable(True))
    eq(model(torch.zeros(1, 2, device=D)), model.bias.view(1, 2))


@check
def nothing_of_torch_c_is_missing():
    """Every name that torch's own Python code asks `torch._C` for."""
    import re
    from pathlib import Path

    missing = set()
    for path in (Path(torch.__file__).parent / "cuda").rglob("*.py"):
        missing |= {
            name
            for name in re.findall(
                r"torch\._C\.(_cuda\w+|_[A-Z]\w+|_nvtx|_cudart)", path.read_text()
            )
            if not hasattr(torch._C, name)
        }
    rocm = {n for n in missing if "hip" in n.lower() or "rocm" in n.lower()}
    assert not missing - rocm, sorted(missing)


@check
def nvtx_ranges():
    from torch.cuda import nvtx

    assert nvtx.range_push("a") == 0 and nvtx.range_push("b") == 1
    assert nvtx.range_pop() == 1 and nvtx.range_pop() == 0
    with nvtx.range("c {}", 1):
        nvtx.mark("d")
    nvtx.range_end(nvtx.range_start("e"))
    with torch.autograd.profiler.emit_nvtx():
        torch.ones(2, device=D) + 1


@check
def profiler_of_both_activities():
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        record_shapes=True,
        profile_memory=True,
    ) as p:
        with record_function("step"):
            nn.Linear(4, 4).cuda()(torch.ones(2, 4, device=D)).sum().backward()
    assert "aten::" in p.key_averages().table(sort_by="cpu_time_total")
    with torch.autograd.profiler.profile(use_device=D):
        torch.ones(2, device=D).sum()


@check
def comm_functions():
    from torch.cuda import comm

    n = torch.cuda.device_count()
    devices = list(range(n))
    x = torch.arange(8.0).view(8, 1)
    parts = comm.scatter(x, devices)
    eq(comm.gather(parts, destination=0), x)
    eq(comm.gather(parts, destination="cpu"), x)
    copies = comm.broadcast(x.cuda(), devices)
    eq(comm.reduce_add(copies, 0), x * n)
    assert len(comm.broadcast_coalesced([x.cuda(), x.cuda()], devices)) == n
    eq(comm.reduce_add_coalesced([[x.cuda(i)] for i in devices], 0)[0], x * n)


@check
def copies_and_pickles():
    x = torch.randn(3, 4, device=D)[:, 1:].t()
    y = copy.deepcopy(x)
    eq(x, y)
    eq(pickle.loads(pickle.dumps(x)), x)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).cuda()
    other = pickle.loads(pickle.dumps(model))
    assert other[0].weight.is_cuda
    eq(other[0].weight, model[0].weight)
    shared = torch.ones(4, device=D)
    a, b = copy.deepcopy([shared, shared[:2]])
    b.fill_(7)
    assert a.tolist() == [7, 7, 1, 1]
    g = x.clone().requires_grad_()
    h = copy.deepcopy(g)
    assert h.requires_grad and h.is_leaf


@check
def device_objects():
    assert torch.device("cuda") == torch.device("cuda", None)
    x = torch.ones(2, device="cuda:0")
    with torch.cuda.device_of(x), torch.cuda.device(0), torch.cuda.device(-1):
        assert torch.cuda.current_device() == 0
    torch.cuda.set_device("cuda:0")
    assert torch.cuda.get_device_name() and len(torch.cuda.get_device_capability()) == 2
    assert torch.cuda.is_initialized() and torch.cuda.is_bf16_supported()
    raises((RuntimeError, AssertionError), "device", lambda: torch.cuda.set_device(99))
    assert x.cuda(0).data_ptr() == x.data_ptr()
    assert torch.cuda.can_device_access_peer(0, 0) in (True, False)
    repr(torch.cuda.get_device_properties(0))


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.full((2,), float(i))


class OnDevice(Numbers):
    def __getitem__(self, i):
        return torch.full((2,), float(i), device=D).cpu()


def _load(dataset, **options):
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=1, **options)
    return sum(batch.to(D, non_blocking=True).sum().item() for batch in loader)


@check
def dataloader_fork():
    torch.ones(1, device=D)
    assert _load(Numbers(), multiprocessing_context="fork", pin_memory=True) == 56


@check
def dataloader_spawn():
    torch.ones(1, device=D)
    assert _load(Numbers(), multiprocessing_context="spawn", pin_memory=True) == 56


@check
def dataloader_spawn_uses_the_device():
    torch.ones(1, device=D)
    assert _load(OnDevice(), multiprocessing_context="spawn") == 56


@check
def dataloader_fork_uses_the_device():
    torch.ones(1, device=D)
    try:
        _load(OnDevice(), multiprocessing_context="fork")
    except RuntimeError as error:
        assert "Cannot re-initialize CUDA in forked subprocess" in str(error), error
        return
    raise AssertionError("a forked child used the device")
