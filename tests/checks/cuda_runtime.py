"""Streams, memory, data loading, compilers, profilers. Unchanged user code that says "cuda"; one function is one check."""

import io
import tempfile

import torch
from checks.base import D, check, close, eq
from torch import nn


@check
def streams():
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        y = torch.ones(2, device=D) * 2
    s.synchronize()
    torch.cuda.current_stream().wait_stream(s)
    y.record_stream(s)
    torch.cuda.current_stream().synchronize()
    torch.cuda.default_stream()
    s.query()


@check
def events():
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    torch.randn(200, 200, device=D) @ torch.randn(200, 200, device=D)
    b.record()
    b.synchronize()
    torch.cuda.synchronize()
    dt = a.elapsed_time(b)
    assert 0 < dt < 1000, dt
    assert b.query()


@check
def memory_api():
    x = torch.zeros(1 << 20, device=D)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() >= 4 << 20
    torch.cuda.max_memory_allocated()
    torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory_summary()
    torch.cuda.mem_get_info()
    torch.cuda.memory_stats()


@check
def pin_memory():
    x = torch.randn(4).pin_memory()
    assert x.is_pinned()
    eq(x.to(D, non_blocking=True), x)
    y = torch.empty(4, pin_memory=True)
    assert y.is_pinned()
    y.copy_(x.cuda(), non_blocking=True)
    eq(x, y)
    assert not torch.randn(3).is_pinned()


@check
def dataloader_pin():
    from torch.utils.data import DataLoader, TensorDataset

    ds = TensorDataset(torch.randn(32, 3), torch.arange(32))
    n = 0
    for x, y in DataLoader(
        ds, 8, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True
    ):
        assert x.is_pinned()
        x = x.cuda(non_blocking=True)
        n += y.cuda().sum().item()
    assert n == sum(range(32))


@check
def threads():
    import threading

    err = []

    def w(i):
        try:
            x = torch.full((8, 8), float(i), device=D, requires_grad=True)
            for _ in range(30):
                (x @ x).sum().backward()
                assert (x * 0 + i).sum().item() == 64 * i
                x.grad = None
        except BaseException as e:
            err.append(e)

    ts = [threading.Thread(target=w, args=(i,)) for i in range(4)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    assert not err, err[0]


@check
def thread_device_string():
    import threading

    r = []
    t = threading.Thread(target=lambda: r.append(str(torch.zeros(1, device="cuda").device)))
    t.start()
    t.join()
    assert r == ["cuda:0"], r


@check
def jit_trace_script():
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).cuda()
    t = torch.jit.trace(m, torch.ones(1, 3, device=D))
    close(t(torch.ones(1, 3, device=D)), m(torch.ones(1, 3, device=D)))
    s = torch.jit.script(m)
    s(torch.ones(1, 3, device=D))
    b = io.BytesIO()
    torch.jit.save(s, b)
    b.seek(0)
    torch.jit.load(b, map_location="cuda")


@check
def profiler():
    with torch.profiler.profile() as p:
        (torch.ones(3, device=D) * 2).sum().item()
    assert any("aten::mul" in e.key for e in p.key_averages())


@check
def data_parallel():
    nn.DataParallel(nn.Linear(3, 3).cuda())(torch.ones(2, 3, device=D)).sum().backward()


@check
def ddp_gloo():
    import torch.distributed as dist

    f = tempfile.NamedTemporaryFile()
    dist.init_process_group("gloo", init_method="file://" + f.name + "x", rank=0, world_size=1)
    try:
        m = nn.parallel.DistributedDataParallel(nn.Linear(3, 3).cuda(), device_ids=[0])
        m(torch.ones(2, 3, device=D)).sum().backward()
        t = torch.ones(2, device=D)
        dist.all_reduce(t)
    finally:
        dist.destroy_process_group()


@check
def nccl_available():
    import torch.distributed as dist

    assert dist.is_nccl_available(), "is_nccl_available() is False"


@check
def compile_eager_backend():
    f = torch.compile(lambda x: (x * 2).relu(), backend="eager")
    eq(f(torch.ones(3, device=D)), torch.full((3,), 2.0))


@check
def compile_aot_eager():
    f = torch.compile(lambda x: (x * 2).relu().sum(), backend="aot_eager")
    x = torch.ones(3, device=D, requires_grad=True)
    f(x).backward()


@check
def compile_inductor():
    f = torch.compile(lambda x: (x * 2).relu())
    f(torch.ones(3, device=D))


@check
def misc_flags():
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.version()
    torch.cuda.is_bf16_supported()
    torch.backends.cuda.is_built()
    torch.cuda.get_arch_list()
    torch.version.cuda.split(".")
    torch.cuda.nvtx.range_push if False else None
    torch.cuda.ipc_collect()
    torch.cuda.utilization if False else None


@check
def nvtx():
    torch.cuda.nvtx.range_push("a")
    torch.cuda.nvtx.range_pop()


@check
def accelerator_api():
    assert (
        torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "cuda"
    )
    torch.accelerator.synchronize()
    torch.accelerator.device_count()
    torch.accelerator.current_device_index()
    torch.accelerator.memory_allocated()


@check
def tensor_subclass_dispatch_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    class M(TorchDispatchMode):
        def __torch_dispatch__(s, f, t, a=(), k=None):
            return f(*a, **(k or {}))

    with M():
        assert (torch.ones(2, device=D) * 2).sum().item() == 4


@check
def fake_tensor():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as m:
        x = torch.ones(2, 2, device="cuda")
        assert (x @ x).device.type == "cuda"


@check
def meta_to_cuda():
    with torch.device("meta"):
        m = nn.Linear(3, 3)
    m.to_empty(device="cuda")
    m.reset_parameters()
    m(torch.ones(1, 3, device=D))
