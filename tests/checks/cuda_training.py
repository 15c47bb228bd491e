"""Autograd, random numbers, autocast, optimizers. Unchanged user code that says "cuda"; one function is one check."""

import copy

import torch
import torch.nn.functional as F
from checks.base import D, check, close, eq
from torch import nn


@check
def view_autograd():
    for d in ("cpu", D):
        a = torch.arange(6.0, device=d).requires_grad_()
        b = a * 1
        b[2:4].mul_(3)
        b.view(2, 3)[0] += b.view(2, 3)[1]
        b.pow(2).sum().backward()
        if d == "cpu":
            ref = a.grad
    eq(a.grad, ref)


@check
def rng_state():
    torch.manual_seed(5)
    a = torch.rand(4, device=D)
    s = torch.cuda.get_rng_state()
    b = torch.rand(4, device=D)
    torch.cuda.set_rng_state(s)
    eq(torch.rand(4, device=D), b)
    torch.cuda.manual_seed(5)
    eq(torch.rand(4, device=D), a)
    torch.manual_seed(5)
    eq(torch.rand(4, device=D), a)
    torch.cuda.initial_seed()
    torch.cuda.manual_seed_all(1)
    torch.random.fork_rng().__enter__()


@check
def rng_generator():
    g = torch.Generator(device=D).manual_seed(3)
    a = torch.randn(4, device=D, generator=g)
    g.manual_seed(3)
    eq(torch.empty(4, device=D).normal_(generator=g), a)
    torch.randperm(5, device=D, generator=g)
    torch.randint(0, 5, (3,), device=D, generator=g)
    torch.multinomial(torch.ones(5, device=D), 3, generator=g)
    torch.bernoulli(torch.full((4,), 0.5, device=D))
    g.get_state()
    torch.randint_like(torch.ones(3, device=D), 4)


@check
def rng_many_generators():
    for i in range(20_000):
        g = torch.Generator(device=D).manual_seed(i)
    h = torch.Generator(device=D).manual_seed(19_999)
    eq(torch.randn(4, device=D, generator=g), torch.randn(4, device=D, generator=h))


@check
def rng_checkpoint():
    import torch.utils.checkpoint as cp

    m = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).cuda()
    x = torch.randn(4, 8, device=D, requires_grad=True)
    for ur in (False, True):
        torch.manual_seed(1)
        cp.checkpoint(m, x, use_reentrant=ur).sum().backward()
        g1 = x.grad.clone()
        x.grad = None
        torch.manual_seed(1)
        m(x).sum().backward()
        eq(g1, x.grad)
        x.grad = None


@check
def autocast_bf16():
    m = nn.Linear(8, 8).cuda()
    x = torch.randn(2, 8, device=D)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = m(x)
        assert y.dtype == torch.bfloat16
        z = F.softmax(y, -1)
        assert z.dtype == torch.float32
        l = F.mse_loss(y, torch.zeros_like(y))
        assert l.dtype == torch.float32
    l.backward()
    assert m.weight.grad.dtype == torch.float32


@check
def autocast_fp16_gradscaler():
    m = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()
    o = torch.optim.SGD(m.parameters(), 0.01)
    s = torch.amp.GradScaler("cuda")
    for _ in range(3):
        with torch.amp.autocast("cuda", dtype=torch.float16):
            l = m(torch.randn(4, 8, device=D)).float().pow(2).mean()
        o.zero_grad()
        s.scale(l).backward()
        s.unscale_(o)
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        s.step(o)
        s.update()
    assert s.get_scale() > 0
    torch.cuda.amp.GradScaler()
    s.state_dict()


@check
def autocast_default():
    with torch.cuda.amp.autocast():
        assert (torch.ones(2, 2, device=D) @ torch.ones(2, 2, device=D)).dtype == torch.float16
        assert torch.is_autocast_enabled("cuda")


def optim_case(cls, **k):
    P = {}
    for d in ("cpu", D):
        torch.manual_seed(0)
        m = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).to(d)
        o = cls(m.parameters(), lr=0.01, **k)
        for i in range(4):
            o.zero_grad()
            m(torch.linspace(-1, 1, 24).view(4, 6).to(d)).pow(2).sum().backward()
            o.step()
        P[d] = [p.detach().cpu() for p in m.parameters()]
    for a, b in zip(P["cpu"], P[D]):
        eq(b, a)


@check
def optim_default_foreach():
    m = nn.Linear(3, 3).cuda()
    o = torch.optim.AdamW(m.parameters())
    m(torch.ones(1, 3, device=D)).sum().backward()
    o.step()
    sd = copy.deepcopy(o.state_dict())
    o.load_state_dict(sd)
    o.step()


@check
def optim_lbfgs():
    m = nn.Linear(3, 1).cuda()
    o = torch.optim.LBFGS(m.parameters())
    x = torch.randn(8, 3, device=D)
    o.step(
        lambda: (
            (
                o.zero_grad(),
                m(x).pow(2).mean(),
            )[1].backward()
            or m(x).pow(2).mean()
        )
    )


@check
def capturable():
    m = nn.Linear(3, 3).cuda()
    o = torch.optim.Adam(m.parameters(), capturable=True)
    m(torch.ones(1, 3, device=D)).sum().backward()
    o.step()


@check
def hooks_and_custom_fn():
    seen = []

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(c, x):
            c.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(c, g):
            (x,) = c.saved_tensors
            seen.append(str(torch.zeros(1, device="cuda").device))
            return g * 2

    x = torch.ones(3, device=D, requires_grad=True)
    x.register_hook(lambda g: g * 3)
    Fn.apply(x).sum().backward()
    eq(x.grad, torch.full((3,), 6.0))
    assert seen == ["cuda:0"], seen


@check
def double_backward():
    x = torch.randn(4, device=D, requires_grad=True)
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    g.sum().backward()
    close(x.grad, 6 * x.detach())
    torch.autograd.gradcheck(
        lambda t: (t * t).sin(), torch.randn(3, dtype=torch.float64, device=D, requires_grad=True)
    )


@check
def functorch():
    f = torch.func.vmap(torch.func.grad(lambda x: (x**2).sum()))
    eq(f(torch.ones(3, 2, device=D)), torch.full((3, 2), 2.0))
    torch.func.jacrev(lambda x: x.sin())(torch.ones(3, device=D))
    torch.func.functional_call(nn.Linear(2, 2).cuda(), {}, torch.ones(1, 2, device=D))


@check
def inference_mode():
    with torch.inference_mode():
        x = torch.ones(3, device=D)
        y = x * 2
        y.add_(1)
        y[0] = 5
        eq(y, torch.tensor([5.0, 3.0, 3.0]))


@check
def lr_sched_swa_ema():
    m = nn.Linear(2, 2).cuda()
    o = torch.optim.Adam(m.parameters())
    s = torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=5)
    m(torch.ones(1, 2, device=D)).sum().backward()
    o.step()
    s.step()
    a = torch.optim.swa_utils.AveragedModel(m)
    a.update_parameters(m)
    o2 = torch.optim.Adam(m.parameters(), lr=torch.tensor(1e-3))


@check
def parametrize():
    m = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).cuda()
    m(torch.ones(1, 3, device=D)).sum().backward()
    nn.utils.spectral_norm(nn.Linear(3, 3)).cuda()(torch.ones(1, 3, device=D))


@check
def anomaly():
    with torch.autograd.set_detect_anomaly(True):
        x = torch.ones(2, device=D, requires_grad=True)
        (x * 2).sum().backward()


@check
def distributions():
    d = torch.distributions.Normal(torch.zeros(2, device=D), torch.ones(2, device=D))
    d.log_prob(d.rsample()).sum()
    c = torch.distributions.Categorical(logits=torch.zeros(3, device=D))
    c.log_prob(c.sample())
    c.entropy()
    torch.distributions.Gamma(torch.ones(2, device=D), 1.0).rsample()
    torch.distributions.Beta(torch.ones(2, device=D), torch.ones(2, device=D)).sample()


def _add_optimizers():
    for name in [
        "SGD",
        "Adam",
        "AdamW",
        "RMSprop",
        "Adagrad",
        "NAdam",
        "RAdam",
        "Adadelta",
        "Adamax",
        "ASGD",
        "Rprop",
    ]:
        options = {"momentum": 0.9} if name == "SGD" else {}
        fused = ({"fused": True},) if name in ("SGD", "Adam", "AdamW", "Adagrad") else ()
        for mode in ({"foreach": True}, {"foreach": False}, *fused):

            def case(name=name, options=options, mode=mode):
                optim_case(getattr(torch.optim, name), **options, **mode)

            case.__name__ = f"optim_{name}_{next(iter(mode))}_{next(iter(mode.values()))}"
            check(case)


_add_optimizers()
