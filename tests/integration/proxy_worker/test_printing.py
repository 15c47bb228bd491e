"""Printing a tensor of the device shows what torch shows for the same tensor on the host."""

import subprocess
import sys

import pytest
from singularity_proxy.standalone import Standalone

CODE = """
import sys, threading, torch
native = sys.modules["_singularity_native"]

def trips(tensor):
    torch.cuda.synchronize()
    before = native.stats(0)["sync_records"]
    repr(tensor)
    return native.stats(0)["sync_records"] - before

def same(host, device=None):
    # The first print of such a tensor; the second is not dearer.
    device = host.to("cuda") if device is None else device
    torch.cuda.synchronize()
    before = native.stats(0)["sync_records"]
    shown = repr(device)
    first = native.stats(0)["sync_records"] - before
    shown = "".join(shown.split()).replace(",device='cuda:0'", "")
    wanted = "".join(repr(host).split())
    assert shown == wanted, (shown, wanted)
    assert first <= 3, (host.shape, host.dtype, first)
    assert trips(device) <= first, (host.shape, host.dtype)

torch.manual_seed(1)
shapes = [(), (0,), (5,), (1000,), (1001,), (7, 400), (20, 20), (300, 7), (2, 3, 400), (12, 13, 14)]
shapes += [(50, 60, 70), (1, 9, 8, 20), (3, 0, 400), (2, 8, 1, 9, 10)]
for shape in shapes:
    same(torch.randn(shape) * 3)
dtypes = [torch.int64, torch.bool, torch.complex64, torch.bfloat16, torch.float16, torch.float64]
for dtype in [*dtypes, torch.uint8, torch.int16, torch.complex128, torch.float8_e4m3fn]:
    for shape in [(), (5,), (1001,), (7, 400), (2, 8, 9, 10)]:
        same((torch.rand(shape) * 9 - (4 if dtype.is_signed else 0)).to(dtype))
if hasattr(torch, "float4_e2m1fn_x2"):
    for shape in [(5,), (1001,), (7, 400)]:
        host = torch.randint(0, 256, shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        same(host, host.view(torch.uint8).to("cuda").view(torch.float4_e2m1fn_x2))
torch.set_printoptions(edgeitems=1)
same(torch.randn(4, 4, 4, 4, 4))
torch.set_printoptions(profile="default")
for host in [torch.randn(100, 100), torch.randn(9, 30, 11, dtype=torch.complex64)]:
    device = host.to("cuda")
    same(host.mT, device.mT)
    same(host[::3, 5:], device[::3, 5:])
    same(host[1:].conj(), device[1:].conj())
    if host.is_complex():
        same(host.conj().imag, device.conj().imag)
    same(host[:, :1].expand(-1, 40, *host.shape[2:]), device[:, :1].expand(-1, 40, *host.shape[2:]))
same(torch.randn(4, 4, dtype=torch.complex64).conj())
same(torch.tensor([float("nan"), float("inf"), 1e-20, 1e20]))
torch.set_printoptions(edgeitems=1, threshold=5, precision=2)
same(torch.randn(40, 3))
torch.set_printoptions(threshold=0)
same(torch.tensor(3.5))
same(torch.randn(3, 2))
torch.set_printoptions(edgeitems=0)
same(torch.randn(30, 4))
torch.set_printoptions(edgeitems=3000, threshold=5)  # more indices than are worth sending
same(torch.arange(9000))
torch.set_printoptions(profile="default")
with torch.device("cuda"):
    assert repr(torch.zeros(2000)).startswith("tensor([0., 0., 0.,  ..., 0., 0., 0.]")
leaf = torch.ones(2, device="cuda", requires_grad=True)
assert repr(leaf) == "tensor([1., 1.], device='cuda:0', requires_grad=True)", repr(leaf)
assert "grad_fn=<MulBackward0>" in repr(leaf * 2)
large = torch.zeros(1 << 24, device="cuda")
large[0] = 7
torch.cuda.synchronize()
assert repr(large).startswith("tensor([7., 0., 0.,  ..., 0., 0., 0.]")
whole = [torch.arange(30), torch.arange(40, device="cuda")]
long = [torch.arange(1 << 11, device="cuda"), torch.arange(1 << 12).view(64, 64)]
wanted, wrong = [repr(tensor) for tensor in whole + long], []
def prints():
    for _ in range(40):
        if [repr(tensor) for tensor in whole + long] != wanted:
            wrong.append(1)
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=prints) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.setswitchinterval(5e-3)
assert not wrong, len(wrong)
assert "..." not in wanted[0] + wanted[1] and "..." in wanted[2] and "..." in wanted[3]
assert torch._tensor_str.PRINT_OPTS.threshold == 1000
"""


@pytest.mark.timeout(120)
def test_a_printed_tensor_is_that_of_the_host_and_costs_few_round_trips() -> None:
    with Standalone() as session:
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            env=session.env(),
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
