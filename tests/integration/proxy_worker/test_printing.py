"""Printing a tensor of the device shows what torch shows for the same tensor on the host."""

import subprocess
import sys

import pytest
from singularity_proxy.standalone import Standalone

CODE = """
import sys, torch
native = sys.modules["_singularity_native"]

def trips(tensor):
    torch.cuda.synchronize()
    before = native.stats(0)["sync_records"]
    repr(tensor)
    return native.stats(0)["sync_records"] - before

def same(host):
    device = host.to("cuda")
    shown = "".join(repr(device).split()).replace(",device='cuda:0'", "")
    wanted = "".join(repr(host).split())
    assert shown == wanted, (shown, wanted)
    repr(device)
    assert trips(device) <= 3, (host.shape, trips(device))

torch.manual_seed(1)
shapes = [(), (0,), (5,), (1000,), (1001,), (7, 400), (20, 20), (300, 7), (2, 3, 400), (12, 13, 14)]
for shape in shapes:
    for dtype in [torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16]:
        same((torch.randn(shape) * 3).to(dtype))
same(torch.randn(100, 100).t())
same(torch.randn(100, 100)[::3, 5:])
same(torch.randn(4, 4, dtype=torch.complex64).conj())
same(torch.tensor([float("nan"), float("inf"), 1e-20, 1e20]))
torch.set_printoptions(edgeitems=1, threshold=5, precision=2)
same(torch.randn(40, 3))
torch.set_printoptions(profile="default")
leaf = torch.ones(2, device="cuda", requires_grad=True)
assert repr(leaf) == "tensor([1., 1.], device='cuda:0', requires_grad=True)", repr(leaf)
assert "grad_fn=<MulBackward0>" in repr(leaf * 2)
large = torch.zeros(1 << 24, device="cuda")
large[0] = 7
torch.cuda.synchronize()
assert repr(large).startswith("tensor([7., 0., 0.,  ..., 0., 0., 0.]")
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
