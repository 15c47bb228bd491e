"""User code for the tests of torch.compile: `python compiled_programs.py NAME DEVICE`.

Unchanged PyTorch code; imports nothing of the project. Each program prints one JSON object.
"""

import functools
import gc
import json
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = sys.argv[2]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.batch_norm, self.dropout = nn.BatchNorm1d(16), nn.Dropout(0.2)

    def forward(self, x):
        y = self.down(F.gelu(self.up(self.norm(x))))
        return self.batch_norm(x + self.dropout(y))


def training(steps=8, pause=None):
    """Forward, backward, a buffer that changes, random numbers; AdamW. -> losses and weights."""
    torch.manual_seed(3)
    model = Block().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    compiled = torch.compile(model)
    host = torch.Generator().manual_seed(5)
    losses = []
    for step in range(steps):
        x = torch.randn(24, 16, generator=host).to(DEVICE)
        loss = compiled(x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        if pause and step == 2:
            pause()
    weights = [p.detach().cpu().double().sum().item().hex() for p in model.parameters()]
    buffers = [b.double().sum().item().hex() for b in model.buffers()]
    return {"losses": losses, "weights": weights, "buffers": buffers}


def interrupted():
    """`training`, with a stop in the middle that lasts until a line arrives."""

    def pause():
        print("paused", flush=True)
        sys.stdin.readline()

    return training(pause=pause)


def equal(a, b, tol=1e-5):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


def features():
    """Compiled results beside eager ones, for what real code does with torch.compile."""
    done = []

    def passed(name):
        done.append(name)

    torch.manual_seed(0)
    x = torch.randn(12, 16, device=DEVICE)

    @torch.compile(fullgraph=True)
    def twice(a, b):
        return (a * b).relu().sum(1), a - b

    first, second = twice(x, x + 1)
    equal(first, (x * (x + 1)).relu().sum(1))
    equal(second, x - (x + 1))
    passed("fullgraph")

    half = torch.compile(lambda a: torch.softmax(a @ a.T, -1))
    with torch.autocast("cuda" if x.is_cuda else "cpu", dtype=torch.bfloat16):
        got, wanted = half(x), torch.softmax(x @ x.T, -1)
    assert got.dtype == wanted.dtype
    equal(got.float(), wanted.float(), 2e-2)
    passed("autocast")

    @torch.compile
    def breaks(a):
        b = a.sin()
        if b.sum().item() > -1e9:  # a graph break
            b = b + 1
        return b.cos()

    equal(breaks(x), (x.sin() + 1).cos())
    passed("graph_break")

    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("inductor")
    lengths = torch.compile(lambda a: (a * 2).cumsum(0) + a.shape[0], backend=counter)
    for n in (5, 7, 9, 11, 30):
        a = torch.arange(n * 4.0, device=DEVICE).view(n, 4)
        equal(lengths(a), (a * 2).cumsum(0) + n)
    assert counter.frame_count <= 2, counter.frame_count
    passed("automatic_dynamic")

    weight = torch.randn(16, 16, device=DEVICE, requires_grad=True)
    learn = torch.compile(lambda a: (a @ weight).tanh().mean(), dynamic=True)
    for n in (6, 10):
        a = torch.randn(n, 16, device=DEVICE)
        (got,) = torch.autograd.grad(learn(a), weight)
        (wanted,) = torch.autograd.grad((a @ weight).tanh().mean(), weight)
        equal(got, wanted)
    passed("dynamic_training")

    @torch.compile(mode="reduce-overhead")
    def in_place(a, b):
        a.mul_(2)
        return a.t(), b[1:]

    a, b = torch.ones(2, 3, device=DEVICE), torch.arange(4.0, device=DEVICE)
    for expected in (2.0, 4.0):
        view, tail = in_place(a, b)
        assert a.unique().tolist() == [expected]
        assert view.shape == (3, 2)
        assert view.data_ptr() == a.data_ptr()
        assert tail.tolist() == [1, 2, 3]
    passed("mutation_and_views")

    class Stepper(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def step(self, a):
            self.count.add_(a.sum())
            return self.count * 2

    stepper = Stepper().to(DEVICE)
    step = torch.compile(stepper.step)
    assert step(torch.ones(2, device=DEVICE)).tolist() == [4.0] * 3
    assert step(torch.ones(2, device=DEVICE)).tolist() == [8.0] * 3
    passed("method_and_buffer")

    scaled = torch.compile(lambda a, s: a * s + torch.tensor([1.0, 2.0], device=a.device))
    equal(
        scaled(torch.ones(3, 2, device=DEVICE), torch.tensor(3.0)).cpu(),
        torch.tensor([[4.0, 5.0]] * 3),
    )
    passed("host_numbers_and_constants")

    with torch.no_grad():
        named = torch.compile(
            lambda a: (a + 1).log(), backend=NAMED, options={"epilogue_fusion": False}
        )
        equal(named(x.abs()), (x.abs() + 1).log())
    passed("named_backend_and_options")

    drop = torch.compile(lambda a: F.dropout(a, 0.5))
    torch.manual_seed(11)
    first = drop(x)
    torch.manual_seed(11)
    assert torch.equal(first, drop(x))
    assert (first == 0).any()
    assert not torch.equal(first, drop(x))
    passed("random_numbers_follow_the_seed")
    return {"passed": done}


def attention():
    """Scaled dot product attention, compiled beside eager. -> what was compared."""
    done = []
    torch.manual_seed(0)
    shape = (2, 3, 16, 8)
    lower = torch.ones(16, 16, dtype=torch.bool, device=DEVICE).tril()
    bias = torch.randn(16, 16, device=DEVICE)
    kinds = {
        "causal": {"is_causal": True, "scale": 0.3},
        "boolean mask": {"attn_mask": lower},
        "added mask": {"attn_mask": bias},
    }
    for name, options in kinds.items():
        torch._dynamo.reset()
        attend = functools.partial(F.scaled_dot_product_attention, **options)
        compiled = torch.compile(attend, fullgraph=True)
        inputs = [torch.randn(shape, device=DEVICE, requires_grad=True) for _ in range(3)]
        got, wanted = compiled(*inputs), attend(*inputs)
        equal(got, wanted)
        weight = torch.randn_like(wanted)
        for one, other in zip(
            torch.autograd.grad((got * weight).sum(), inputs),
            torch.autograd.grad((wanted * weight).sum(), inputs),
            strict=True,
        ):
            equal(one, other, 1e-4)
        done.append(f"training, {name}")
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                equal(compiled(*inputs), attend(*inputs))
            done.append(f"{mode.__name__}, {name}")
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            got, wanted = compiled(*inputs), attend(*inputs)
        assert got.dtype == wanted.dtype == torch.bfloat16
        equal(got.float(), wanted.float(), 2e-2)
        gradients = torch.autograd.grad(got.float().sum(), inputs)
        for one, other in zip(
            gradients, torch.autograd.grad(wanted.float().sum(), inputs), strict=True
        ):
            equal(one, other, 5e-2)
        done.append(f"autocast, {name}")
    long = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q), dynamic=True)
    for length in (5, 9, 30):
        q = torch.randn(2, 3, length, 8, device=DEVICE)
        equal(long(q), F.scaled_dot_product_attention(q, q, q))
    done.append("changing lengths")
    return {"compared": done}


def freed():
    """Graphs that nothing can call any more, and two that live; stops twice for a line."""

    def pause():
        gc.collect()
        x.add_(0)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        print("paused", flush=True)
        sys.stdin.readline()

    x = torch.arange(1.0, 7.0, device=DEVICE)
    kept = torch.compile(lambda a: (a + 1).log())
    for power in (2, 3):
        gone = torch.compile(lambda a, power=power: (a**power).sum(0, keepdim=True))
        assert gone(x).shape == (1,)
        del gone
        torch._dynamo.reset()
        gc.collect()
    first = kept(x).tolist()
    pause()
    assert kept(x).tolist() == first
    more = torch.compile(lambda a: (a * 5).cos())
    second = more(x).tolist()
    pause()
    assert kept(x).tolist() == first
    assert more(x).tolist() == second
    return {"first": first, "second": second}


def fallback():
    """A graph that cannot be sent runs all the same, after one warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        to_host = torch.compile(lambda a: ((a * 2).cpu(), a + 1))
        x = torch.ones(3, device=DEVICE)
        for _ in range(2):
            host, device = to_host(x)
        torch._dynamo.reset()
        to_host(x)
    said = [str(w.message) for w in caught if "torch.compile: a graph" in str(w.message)]
    return {"host": host.tolist(), "device": device.tolist(), "said": said}


def records():
    """How many records one more call of a compiled training step takes."""
    import _singularity_native as native

    torch.manual_seed(3)
    model = Block().to(DEVICE)
    compiled = torch.compile(model)
    x = torch.randn(24, 16, device=DEVICE)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        before = native.stats(0)
        compiled(x)
        after = native.stats(0)
    return {kind: after[kind] - before[kind] for kind in ("async_records", "sync_records")}


NAMED = "singularity" if DEVICE == "cuda" else "inductor"
torch.set_num_threads(1)
print(json.dumps(globals()[sys.argv[1]]()))
