"""Tensors, views, dtypes, indexing, files. Unchanged user code that says "cuda"; one function is one check."""

import copy
import io
import pickle

import torch
import torch.nn.functional as F
from checks.base import D, check, close, eq
from torch import nn


@check
def basic_is_available():
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    torch.cuda.get_device_name(0)
    torch.cuda.get_device_properties(0).total_memory
    torch.cuda.get_device_capability()


@check
def device_attr():
    x = torch.zeros(2, device=D)
    assert (
        x.is_cuda
        and x.device.type == "cuda"
        and str(x.device) == "cuda:0"
        and x.device == torch.device("cuda", 0)
        and x.get_device() == 0
    )


@check
def device_isinstance():
    assert (
        isinstance(torch.zeros(1, device=D).device, torch.device)
        and torch.device("cuda").type == "cuda"
    )


@check
def to_variants():
    x = torch.randn(3)
    eq(x.to("cuda"), x)
    eq(x.to("cuda:0"), x)
    eq(x.to(0), x)
    eq(x.cuda(0), x)
    eq(x.to(torch.device("cuda:0"), torch.float64), x.double())
    eq(x.cuda().to("cpu"), x)
    eq(x.type(torch.cuda.FloatTensor), x)


@check
def device_ctx():
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda and nn.Linear(2, 2).weight.is_cuda


@check
def set_default_device():
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).is_cuda
    finally:
        torch.set_default_device("cpu")


@check
def with_cuda_device():
    with torch.cuda.device(0):
        assert torch.zeros(1, device="cuda").is_cuda


@check
def printing():
    s = repr(torch.arange(6.0, device=D).view(2, 3))
    assert "device='cuda:0'" in s, s
    repr(torch.randn(100, 100, device=D))
    repr(torch.tensor([1, 2], device=D))
    repr(torch.tensor([1 + 2j], device=D))
    repr(torch.tensor([True], device=D))
    repr(torch.randn(2, device=D, dtype=torch.bfloat16))
    repr(torch.empty(0, device=D))


@check
def dtypes():
    for dt in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.complex128,
    ):
        x = torch.randn(8, dtype=torch.float64).mul(3).to(dt)
        y = x.to(D)
        eq(y, x)
        if dt != torch.bool:
            eq(y + y, x + x)
            eq(y * 2, x * 2)
        eq(y.to(torch.complex64), x.to(torch.complex64))


@check
def float8():
    x = torch.randn(8).to(torch.float8_e4m3fn)
    assert x.cuda().cpu().float().equal(x.float())


@check
def complex_ops():
    x = torch.randn(4, 4, dtype=torch.complex64)
    y = x.cuda()
    eq(y.conj(), x.conj().resolve_conj())
    eq((y.conj() @ y), x.conj() @ x)
    eq(torch.view_as_real(y), torch.view_as_real(x))
    eq(y.real + y.imag, x.real + x.imag)
    eq(y.conj().imag, x.conj().imag)
    close(torch.fft.fft(y), torch.fft.fft(x))
    close(torch.fft.rfft(y.real), torch.fft.rfft(x.real))


@check
def views_inplace():
    x = torch.zeros(4, 6)
    y = x.cuda()
    for t in (x, y):
        t[1:3, ::2] += 1
        t.t()[0].fill_(5)
        t.view(-1)[3] = 9
        t[:, 1].mul_(2).add_(1)
        t.diagonal().copy_(torch.arange(4.0))
        t[t > 4] = -1
        t[[0, 1]] = 3.0
        t.unfold(1, 2, 2)[0, 0, 0] = 7
        t.chunk(2, 1)[1].sub_(1)
        t.transpose_(0, 1)
        t.unsqueeze_(0)
    eq(y, x)
    assert y.stride() == x.stride() and y.shape == x.shape


@check
def out_variants():
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    ac, bc = a.cuda(), b.cuda()
    o = torch.empty(3, 4, device=D)
    torch.add(ac, bc, out=o)
    eq(o, a + b)
    o = torch.empty(0, device=D)
    torch.mul(ac, bc, out=o)
    eq(o, a * b)
    assert o.shape == (3, 4)
    o = torch.empty(4, 3, device=D).t()
    torch.sub(ac, bc, out=o)
    eq(o, a - b)
    v, i = torch.empty(0, device=D), torch.empty(0, dtype=torch.long, device=D)
    torch.max(ac, 1, out=(v, i))
    eq(v, a.max(1)[0])
    eq(i, a.max(1)[1])
    o = torch.empty(0, device=D)
    torch.cat([ac, bc], out=o)
    eq(o, torch.cat([a, b]))
    o = torch.empty(2, device=D)
    o = torch.mm(ac, bc.t(), out=torch.empty(0, device=D))
    eq(o, a @ b.t())


@check
def tensorlist():
    xs = [torch.randn(2, i + 1) for i in range(4)]
    ys = [x.cuda() for x in xs]
    eq(torch.cat(ys, 1), torch.cat(xs, 1))
    eq(torch.stack([ys[0], ys[0]]), torch.stack([xs[0], xs[0]]))
    [eq(a, b) for a, b in zip(torch.split(ys[3], [1, 3], 1), torch.split(xs[3], [1, 3], 1))]
    eq(torch.block_diag(*ys), torch.block_diag(*xs))
    [
        eq(a, b)
        for a, b in zip(
            torch.meshgrid(ys[0][:, 0], ys[1][0], indexing="ij"),
            torch.meshgrid(xs[0][:, 0], xs[1][0], indexing="ij"),
        )
    ]
    eq(torch.einsum("ij,ik->jk", ys[1], ys[2]), torch.einsum("ij,ik->jk", xs[1], xs[2]))


@check
def indexing():
    x = torch.randn(5, 6)
    y = x.cuda()
    i = torch.tensor([0, 2])
    eq(y[i], x[i])
    eq(y[i.cuda()], x[i])
    eq(y[:, i], x[:, i])
    eq(y[y > 0], x[x > 0])
    eq(y[..., None, 1], x[..., None, 1])
    eq(y.nonzero(), x.nonzero())
    eq(torch.where(y > 0, y, 0.0), torch.where(x > 0, x, 0.0))
    eq(y.gather(1, i.cuda().view(1, 2)), x.gather(1, i.view(1, 2)))
    eq(y.index_select(0, i.cuda()), x.index_select(0, i))
    eq(y.masked_select(y > 0), x.masked_select(x > 0))
    z = y.clone()
    z.index_put_((i.cuda(),), torch.ones(6, device=D), accumulate=True)
    w = x.clone()
    w.index_put_((i,), torch.ones(6), accumulate=True)
    eq(z, w)
    eq(torch.unique(y.round()), torch.unique(x.round()))
    eq(y.topk(2)[0], x.topk(2)[0])
    eq(y.sort()[1], x.sort()[1])
    z = torch.zeros(3, 5, device=D).scatter_(0, torch.tensor([[0, 1, 2, 0, 0]], device=D), 1.0)
    eq(torch.bincount(torch.tensor([1, 1, 3], device=D)), torch.bincount(torch.tensor([1, 1, 3])))


@check
def scalars():
    x = torch.tensor(3.5, device=D)
    assert (
        float(x) == 3.5
        and int(x) == 3
        and bool(x)
        and x.item() == 3.5
        and x.tolist() == 3.5
        and (x == 3.5)
        and len(torch.zeros(3, device=D)) == 3
        and torch.tensor([1, 2], device=D).tolist() == [1, 2]
    )
    assert torch.allclose(x, x) and torch.equal(x, x)
    assert 3 in torch.tensor([3], device=D)
    assert (torch.tensor(2, device=D) + torch.tensor(1.5)).item() == 3.5
    assert f"{x:.2f}" == "3.50"


@check
def type_promotion():
    x = torch.ones(2, dtype=torch.int32, device=D)
    assert (
        (x + 1.5).dtype == torch.float32
        and (x + torch.tensor(1, dtype=torch.int64)).dtype == torch.int32
        and (x / 2).dtype == torch.float32
        and (
            torch.ones(2, device=D, dtype=torch.float16) * torch.tensor(2.0, dtype=torch.float64)
        ).dtype
        == torch.float16
    )


@check
def factories():
    [
        torch.arange(2, 9, 3, device=D),
        torch.linspace(0, 1, 5, device=D),
        torch.eye(3, device=D),
        torch.full((2,), 3, device=D),
        torch.tril(torch.ones(3, 3, device=D)),
        torch.zeros_like(torch.ones(2), device=D),
        torch.tensor([[1.0, 2.0]], device=D),
        torch.as_tensor([1, 2], device=D),
        torch.from_numpy(__import__("numpy").ones(3)).cuda(),
        torch.ones(2, device=D).new_zeros(3),
        torch.ones(2, device=D).new_tensor([1.0]),
        torch.empty_strided((2, 2), (1, 2), device=D),
        torch.triu_indices(3, 3, device=D),
        torch.hann_window(4, device=D),
        torch.complex(torch.ones(2, device=D), torch.ones(2, device=D)),
        torch.tensor(5, device=D),
        torch.arange(5, device=D).float(),
        torch.asarray([1], device=D),
        torch.full((2, 2), float("inf"), device=D).triu(1),
        torch.one_hot if False else F.one_hot(torch.tensor([1, 2], device=D), 4),
    ]
    eq(torch.arange(3, device=D), torch.arange(3))
    eq(torch.arange(7, device=D), torch.arange(7))


@check
def histogram_etc():
    x = torch.randn(50)
    y = x.cuda()
    eq(torch.histc(y, 5), torch.histc(x, 5))
    eq(y.cumsum(0), x.cumsum(0))
    eq(y.median(), x.median())
    eq(y.kthvalue(3)[0], x.kthvalue(3)[0])
    eq(torch.searchsorted(y.sort()[0], y), torch.searchsorted(x.sort()[0], x))
    eq(torch.quantile(y, 0.3), torch.quantile(x, 0.3))
    eq(y.std(), x.std())
    eq(y.logsumexp(0), x.logsumexp(0))
    eq(y.norm(), x.norm())
    eq(y.argmax(), x.argmax())
    eq(y.clamp(min=0.0), x.clamp(min=0.0))
    eq(y.repeat_interleave(2), x.repeat_interleave(2))
    eq(y.roll(3), x.roll(3))
    eq(y.flip(0), x.flip(0))
    eq(torch.bucketize(y, y[:5].sort()[0]), torch.bucketize(x, x[:5].sort()[0]))
    eq(y.cummax(0)[0], x.cummax(0)[0])
    eq(torch.logical_and(y > 0, y < 1), torch.logical_and(x > 0, x < 1))
    eq(torch.trapz(y), torch.trapz(x))
    eq(y.view(5, 10).softmax(1), x.view(5, 10).softmax(1))
    eq(torch.var_mean(y)[0], torch.var_mean(x)[0])


@check
def repeat_interleave_tensor():
    eq(
        torch.repeat_interleave(torch.arange(3, device=D), torch.tensor([1, 2, 3], device=D)),
        torch.repeat_interleave(torch.arange(3), torch.tensor([1, 2, 3])),
    )


@check
def stft():
    x = torch.randn(400)
    w = torch.hann_window(64)
    close(
        torch.stft(x.cuda(), 64, window=w.cuda(), return_complex=True),
        torch.stft(x, 64, window=w, return_complex=True),
        1e-4,
    )


@check
def storage_ops():
    x = torch.arange(6.0, device=D)
    s = x.untyped_storage()
    assert s.nbytes() == 24 and s.device.type == "cuda"
    y = torch.empty(0, device=D).set_(s, 2, (2,), (1,))
    eq(y, torch.tensor([2.0, 3.0]))
    s2 = s.clone()
    assert x.data_ptr() != 0 and x[1:].data_ptr() == x.data_ptr() + 4
    z = torch.empty(2, device=D)
    z.resize_(10)
    z.fill_(1)
    assert z.sum().item() == 10
    u = torch.UntypedStorage(16, device="cuda")
    assert u.nbytes() == 16
    s.cpu()
    x.storage().size()
    s.resize_(0)
    s.resize_(24)


@check
def storage_index():
    x = torch.arange(6.0, device=D)
    return "ok" if x.storage()[2] == 2.0 else "wrong"


@check
def data_swap():
    p = nn.Parameter(torch.zeros(3))
    p.data = torch.ones(3, device=D)
    assert p.is_cuda and p.data.sum() == 3
    m = nn.Linear(2, 2).cuda()
    m.load_state_dict(nn.Linear(2, 2).state_dict())
    m.half()
    m.bfloat16()
    m.to(torch.float32)
    m.cpu()
    m.to("cuda", non_blocking=True)


@check
def save_load():
    m = nn.Linear(3, 3).cuda()
    b = io.BytesIO()
    torch.save({"m": m.state_dict(), "t": torch.arange(4, device=D)}, b)
    b.seek(0)
    d = torch.load(b)
    assert d["t"].is_cuda and str(d["t"].device) == "cuda:0"
    eq(d["m"]["weight"], m.weight)
    b.seek(0)
    assert not torch.load(b, map_location="cpu")["t"].is_cuda
    x = torch.arange(4)
    b = io.BytesIO()
    torch.save(x, b)
    b.seek(0)
    assert torch.load(b, map_location="cuda").is_cuda
    b.seek(0)
    assert torch.load(b, map_location=torch.device("cuda", 0)).is_cuda
    b = io.BytesIO()
    torch.save(m, b)
    b.seek(0)
    torch.load(b, weights_only=False)


@check
def saved_file_portable():
    b = io.BytesIO()
    torch.save(torch.arange(4, device=D), b)
    import zipfile

    b.seek(0)
    z = zipfile.ZipFile(b)
    p = [z.read(n) for n in z.namelist() if n.endswith("data.pkl")][0]
    assert b"cuda:0" in p, f"location tag is not cuda:0: {p[:160]!r}"


@check
def pickling():
    x = torch.randn(3, device=D)
    y = pickle.loads(pickle.dumps(x))
    assert y.is_cuda
    eq(x, y)
    z = copy.deepcopy(nn.Linear(2, 2).cuda())
    assert z.weight.is_cuda
    p = pickle.loads(pickle.dumps(nn.Parameter(x)))
    assert p.is_cuda


@check
def long_copies():
    for size in (1 << 20, (9 << 20) + 3):
        host = torch.arange(size, dtype=torch.int32).to(torch.uint8)
        x = torch.zeros(size + 5, dtype=torch.uint8, device=D)
        for start in (0, 5):
            x.zero_()
            x[start : start + size].copy_(host)
            assert x.sum(dtype=torch.int64).item() == host.sum(dtype=torch.int64).item()
            back = torch.zeros(size + 40, dtype=torch.uint8)
            back[7 : 7 + size].copy_(x[start : start + size])
            assert torch.equal(back[7 : 7 + size], host)
            assert not back[:7].any() and not back[7 + size :].any()
