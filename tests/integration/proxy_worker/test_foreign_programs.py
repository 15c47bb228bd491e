"""What other people's programs do on "cuda", with the values that it has natively."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from singularity_proxy.standalone import Standalone


@pytest.fixture(scope="module")
def session() -> Iterator[Standalone]:
    with Standalone(devices=2, capacity_bytes=1 << 30) as one:
        yield one


def run(session: Standalone, code: str) -> list[str]:
    """The lines that `code` prints in a worker; it may use `torch`, `F` and `same`."""
    helpers = """
    import copy, io, pickle, warnings
    warnings.simplefilter("ignore")
    import torch
    import torch.nn.functional as F
    D = "cuda"
    def same(proxied, native, atol=1e-5):
        torch.testing.assert_close(proxied.cpu(), native, atol=atol, rtol=1e-4)
    def error(f):
        try:
            f()
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return "none"
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(helpers) + textwrap.dedent(code)],
        env=session.env(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_half_precision_that_cuda_widens(session: Standalone) -> None:
    """ATen leaves the conversion to the kernel because the tensor is on "cuda"."""
    out = run(
        session,
        """
        torch.manual_seed(0)
        x, weight = torch.randn(3, 4).half(), torch.randn(3, 4)
        for f in (F.softmax, F.log_softmax):
            a, b = x.to(D).requires_grad_(), x.clone().requires_grad_()
            p, q = f(a, -1, dtype=torch.float), f(b, -1, dtype=torch.float)
            same(p, q)
            (p * weight.to(D)).sum().backward()
            (q * weight).sum().backward()
            same(a.grad, b.grad, atol=1e-3)
            with torch.autocast("cuda", torch.float16):
                same(f(x.to(D) @ torch.eye(4, device=D), -1), f(x.float(), -1))
            wide = torch.empty(3, 4, device=D)
            (torch.softmax if f is F.softmax else torch.log_softmax)(
                x.to(D), -1, dtype=torch.float, out=wide)
            same(wide, q.detach())
        print(p.dtype, a.grad.dtype)
        spectrum = torch.fft.rfft(x.to(D))
        same(spectrum.to(torch.complex64), torch.fft.rfft(x.float()), atol=1e-2)
        same(torch.fft.fft(x.to(D)).to(torch.complex64), torch.fft.fft(x.float()), atol=1e-2)
        print(spectrum.dtype, torch.fft.irfft(spectrum).dtype)
        for driver in ("gesvd", "gesvdj", "gesvda"):
            same(torch.linalg.svd(weight.to(D), driver=driver)[1], torch.linalg.svd(weight)[1])
        print("unknown" in error(lambda: torch.linalg.svd(weight.to(D), driver="own")))
        """,
    )
    assert out == ["torch.float32 torch.float16", "torch.complex32 torch.float16", "True"]


def test_nested_tensors_in_attention(session: Standalone) -> None:
    """nn.TransformerEncoder makes them of padding; nn.MultiheadAttention takes them."""
    out = run(
        session,
        """
        from torch import nn
        torch.manual_seed(0)
        x, ends = torch.randn(3, 5, 16), torch.tensor([2, 5, 3])
        padding = torch.arange(5) >= ends[:, None]
        for norm_first in (True, False):
            layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
            model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
            with torch.no_grad():
                native = model(x, src_key_padding_mask=padding)
                for device in ("cuda:0", "cuda:1"):
                    there = copy.deepcopy(model).to(device)
                    proxied = there(x.to(device), src_key_padding_mask=padding.to(device))
                    same(proxied, native)
        print(proxied.device, proxied[0, 2:].abs().max().item())
        parts = [torch.randn(n, 16) for n in (3, 5)]
        def nested(device):
            return torch.nested.nested_tensor([p.to(device) for p in parts])
        attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
        with torch.no_grad():
            a = attention(*[nested("cpu")] * 3, need_weights=False)[0]
            b = attention.to(D)(*[nested(D)] * 3, need_weights=False)[0]
        for p, q in zip(b.unbind(), a.unbind()):
            same(p, q)
        parts = [torch.randn(2, n, 16) for n in (3, 5)]
        a, b = (F.scaled_dot_product_attention(*[nested(d)] * 3) for d in ("cpu", D))
        for p, q in zip(b.unbind(), a.unbind()):
            same(p, q)
        """,
    )
    assert out == ["cuda:1 0.0"]


def test_host_operands_of_any_size(session: Standalone) -> None:
    out = run(
        session,
        """
        n = 200_000
        x, order = torch.arange(float(n)), torch.randperm(n)
        a, b = x.to(D).requires_grad_(), x.clone().requires_grad_()
        same(a[order], b[order])
        (a[order] * a.detach()).sum().backward()
        (b[order] * b.detach()).sum().backward()
        same(a.grad, b.grad)
        mask = torch.zeros(2_000_000, dtype=torch.bool)
        mask[7] = True
        y = torch.arange(2_000_000, device=D)
        print(y[mask].tolist())
        y[mask] = -1
        print(y[7].item())
        y[order] = 5
        print(y[:n].eq(5).all().item())
        z, one = torch.arange(600.0).view(20, 30), torch.arange(120_000) % 20
        same(z.to(D)[one, one], z[one, one])  # both fit a record, but not together
        print(error(lambda: x.to(D)[torch.tensor([1], device="cuda:1")]).split(" or on ")[1])
        """,
    )
    assert out == [
        "[7]",
        "-1",
        "True",
        "the same device as the indexed tensor (cuda:0)",
    ]


def test_index_lists_of_torchscript(session: Standalone) -> None:
    out = run(
        session,
        """
        x, i = torch.arange(6.0, device=D).view(2, 3), torch.tensor([2, 0], device=D)
        print(torch.jit.trace(lambda x, i: x[:, i], (x, i))(x, i).tolist())
        write = torch.jit.CompilationUnit('''
        def write(x, i):
            x = x.clone()
            x[:, i] = 9.0
            return x
        ''').write
        print(write(x, i).tolist(), write(x, i.cpu()).tolist() == write(x.cpu(), i.cpu()).tolist())
        """,
    )
    assert out == ["[[2.0, 0.0], [5.0, 3.0]]", "[[9.0, 1.0, 9.0], [9.0, 4.0, 9.0]] True"]


def test_tensor_types_of_old(session: Standalone) -> None:
    out = run(
        session,
        """
        a, b = torch.cuda.FloatTensor([1, 2]), torch.cuda.LongTensor(2, 3)
        print(a.tolist(), a.device, a.type(), tuple(b.shape), b.dtype, b.device)
        print(isinstance(a, torch.cuda.FloatTensor), isinstance(b, torch.cuda.FloatTensor),
              isinstance(a.cpu(), torch.cuda.FloatTensor), torch.cuda.FloatTensor.__name__)
        print(torch.ones(2).type(torch.cuda.HalfTensor).type(), torch.cuda.HalfTensor.dtype)
        print(torch.cuda.FloatTensor(2, device="cuda:1").device)
        indices, values = torch.tensor([[0, 2]], device=D), torch.ones(2, device=D)
        print(torch.cuda.sparse.FloatTensor(indices, values, torch.Size([3])).to_dense().tolist())
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        made = (torch.zeros(2), torch.tensor([1.0]), torch.Tensor([1, 2]), torch.Tensor(3),
                torch.nn.Linear(2, 2).weight)
        print({(t.device.type, t.dtype) for t in made}, made[2].tolist())
        torch.set_default_tensor_type(torch.FloatTensor)
        print({(t.device.type, t.dtype) for t in (torch.zeros(2), torch.Tensor(3))})
        """,
    )
    assert out == [
        "[1.0, 2.0] cuda:0 torch.cuda.FloatTensor (2, 3) torch.int64 cuda:0",
        "True False False FloatTensor",
        "torch.cuda.HalfTensor torch.float16",
        "cuda:1",
        "[1.0, 0.0, 1.0]",
        "{('cuda', torch.float64)} [1.0, 2.0]",
        "{('cpu', torch.float32)}",
    ]


def test_generators_are_copied_and_draw_on_other_devices(session: Standalone) -> None:
    out = run(
        session,
        """
        g = torch.Generator("cuda:1").manual_seed(3)
        torch.rand(2, device="cuda:1", generator=g)
        copies = [copy.deepcopy(g), pickle.loads(pickle.dumps(g))]
        want = [torch.rand(2, device="cuda:1", generator=g).tolist() for _ in range(2)]
        for c in copies:
            print(c.device, c.initial_seed(),
                  [torch.rand(2, device="cuda:1", generator=c).tolist() for _ in range(2)] == want)
        print(pickle.loads(pickle.dumps(torch.Generator().manual_seed(4))).initial_seed())
        far, near = (torch.Generator(d).manual_seed(5) for d in ("cuda:1", "cuda:0"))
        for draw in (torch.rand, torch.randn):
            same(draw(3, device=D, generator=far), draw(3, device=D, generator=near).cpu())
        print(torch.randperm(0, device=D, generator=far).numel())
        x = torch.empty(4, device=D)
        same(x.normal_(generator=far).clone(), x.normal_(generator=near).cpu())
        at_home = torch.rand(2, device="cuda:1", generator=far)
        same(at_home, torch.rand(2, device=D, generator=near).cpu())
        print(error(lambda: torch.rand(2, device=D, generator=torch.Generator())))
        """,
    )
    assert out[:4] == ["cuda:1 3 True", "cuda:1 3 True", "4", "0"]
    assert "Expected a 'cuda' device type for generator but found 'cpu'" in out[4]


def test_storages(session: Standalone) -> None:
    out = run(
        session,
        """
        x, host = torch.ones(2, device=D), torch.ones(2)
        print(error(lambda: x.set_(host.untyped_storage())))
        print('"cuda:1".  This is' in error(lambda: x.set_(torch.ones(2, device="cuda:1"))))
        print(error(lambda: x.set_(x.untyped_storage(), -1, (1,))), x.device)
        empty = torch.empty(0, device=D)
        grown, shrunk = (torch.empty(n, device=D).untyped_storage() for n in (0, 2))
        grown.resize_(8), shrunk.resize_(0)
        print(empty.untyped_storage().data_ptr(), grown.data_ptr() != 0, shrunk.data_ptr())
        storage = empty.untyped_storage()
        typed = torch.TypedStorage(wrap_storage=storage, dtype=torch.long, _internal=True)
        torch.save([empty, typed], io.BytesIO())
        part = x.untyped_storage()[4:8]
        print(list(part), len(part), part.device)
        part.fill_(0)  # the same memory
        print(x.tolist(), torch.empty(0, device=D).set_(part).fill_(7).tolist(), x.tolist())
        print(list(part[1:3]), error(lambda: part.resize_(8)),
              error(lambda: torch.empty(0, device=D).set_(part, 1, (1,))))
        clone = x._lazy_clone()
        clone.zero_()
        print(x.tolist(), clone.tolist())
        """,
    )
    different = (
        'RuntimeError: Attempted to set the storage of a tensor on device "cuda:0" to a storage on '
        'different device "cpu".  This is no longer allowed; the devices must match.'
    )
    fixed = "RuntimeError: Trying to resize storage that is not resizable"
    assert out == [
        different,
        "True",
        "RuntimeError: Tensor: invalid storage offset -1 cuda:0",
        "0 True 0",
        f"{[0, 0, 128, 63]} 4 cuda:0",
        "[1.0, 0.0] [7.0] [1.0, 7.0]",
        f"{[0, 224]} {fixed} {fixed}",
        "[1.0, 7.0] [0.0, 0.0]",
    ]


def test_sparse_tensors_of_a_device_that_is_not_the_current_one(session: Standalone) -> None:
    out = run(
        session,
        """
        e = torch.eye(3, device="cuda:1") * 2
        s = e.to_sparse()
        made = (s, s + s, s.t().coalesce(), s * s, s @ e, torch.sparse.mm(s, e),
                torch.sparse.sum(s, 0), torch.sparse.softmax(s, 1), s.to_sparse_csr(),
                e.to_sparse_csr(), e.to_sparse_csr() @ e,
                torch.sparse_coo_tensor([[0], [1]], [2.0], (2, 2), device="cuda:1"))
        print({str(t.device) for t in made}, torch.cuda.current_device())
        same((s + s).to_dense(), torch.eye(3) * 4)
        print(s.to("cuda:0").device, s.to("cuda:0").to_dense().sum().item())
        """,
    )
    assert out == ["{'cuda:1'} 0", "cuda:0 6.0"]


def test_tensors_of_many_dimensions(session: Standalone) -> None:
    out = run(
        session,
        """
        x = torch.full([1] * 200, 2.0, device=D).mul_(3)
        print(x.dim(), (x + 1).dim(), (x + 1).item())
        native, proxied = (error(lambda: torch.ones([1] * 65, device=d).sum(0)) for d in ("cpu", D))
        print(native == proxied, native != "none")
        many = torch.ones([1] * 255, device=D)
        print((many + 1).item(), error(lambda: many.unsqueeze(0) + 1).split(": ")[1])
        print(error(lambda: torch.ones([1] * 256, device=D)).split(": ")[1])
        """,
    )
    assert out == [
        "200 200 7.0",
        "True True",
        "2.0 a proxied device has tensors of at most 255 dimensions, and this one has 256",
        "a proxied device has tensors of at most 255 dimensions, and this one has 256",
    ]
