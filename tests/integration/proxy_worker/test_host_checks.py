"""What CUDA checks on the host is raised, and what it warns of is told, at the line it is of."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from singularity_proxy.standalone import Standalone


@pytest.fixture(scope="module")
def session() -> Iterator[Standalone]:
    with Standalone(capacity_bytes=1 << 28) as one:
        yield one


def run(session: Standalone, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=session.env(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


CALLS = {
    "celu": ("F.celu(x, {})", "1.0", "0.0"),
    "uniform": ("x.uniform_(0.0, {})", "1.0", "-1.0"),
    "normal": ("x.normal_(0.0, {})", "1.0", "-1.0"),
    "bernoulli": ("x.bernoulli_({})", "0.5", "2.0"),
    "exponential": ("x.exponential_({})", "1.0", "-1.0"),
    "cauchy": ("x.cauchy_(0.0, {})", "1.0", "-1.0"),
    "geometric": ("x.geometric_({})", "0.5", "2.0"),
    "log_normal": ("x.log_normal_(1.0, {})", "2.0", "-2.0"),
    "huber_loss": ("F.huber_loss(x, y, delta={})", "1.0", "-1.0"),
    "smooth_l1_loss": ("F.smooth_l1_loss(x, y, beta={})", "1.0", "-1.0"),
    "histc": ("torch.histc(x, 4, 0.0, {})", "1.0", "-1.0"),
    "renorm": ("torch.renorm(m, 2.0, 0, {})", "1.0", "-1.0"),
    "softshrink": ("F.softshrink(x, {})", "0.5", "-0.5"),
    "pow": ("n ** {}", "2", "-1"),
    "fill of halves": ("x.half().fill_({})", "1e4", "1e6"),
    "mask of halves": ("x.half().masked_fill(x > 0, {})", "-1e4", "-1e9"),
    "fill of bytes": ("n.byte().fill_({})", "200", "300"),
    "copy": ("{}.copy_(x[:-1])", "y[1:]", "x[1:]"),
    "out": ("torch.add(x[:-1], 1.0, out={})", "y[1:]", "x[1:]"),
}
"""What -> a call, a word with which it works, and one with which it is refused."""


@pytest.mark.parametrize("what", CALLS)
def test_a_wrong_number_or_overlap_is_refused_at_its_own_line(
    session: Standalone, what: str
) -> None:
    call, good, bad = CALLS[what]
    out = run(
        session,
        f"""
        import torch
        from torch.nn import functional as F

        def caught(device):
            torch.manual_seed(1)
            x, y = torch.rand(6, device=device), torch.rand(6, device=device)
            m, n = torch.rand(2, 3, device=device), torch.arange(1, 5, device=device)
            for _ in range(3):
                {call.format(good)}
            try:
                {call.format(bad)}
            except Exception as error:
                x.sum().item()
                return type(error).__name__, str(error)
            return "nothing"

        print(caught("cpu"))
        print(caught("cuda"))
        """,
    )
    native, proxied = out.splitlines()
    assert proxied == native
    assert native != "'nothing'"


WARNING = {
    "too few for a variance": "torch.ones(1, device=device).var()",
    "an index of bytes": "x[torch.ones(4, dtype=torch.uint8, device=device)]",
    "an output of another size": "torch.add(x, x, out=torch.empty(2, device=device))",
    "complex to real": "x.to(torch.complex64).to(torch.float32)",
}


@pytest.mark.parametrize("what", WARNING)
def test_a_warning_reaches_its_caller_at_its_own_line(session: Standalone, what: str) -> None:
    out = run(
        session,
        f"""
        import warnings
        import torch

        def told(device):
            x = torch.arange(4.0, device=device)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                for _ in range(3):
                    {WARNING[what]}
            return [(w.category.__name__, str(w.message), w.lineno) for w in seen]

        native, proxied = told("cpu"), told("cuda")
        print(len(native), proxied == native, native, proxied)
        """,
    )
    count, same, *_ = out.split()
    assert int(count) >= 1
    assert same == "True", out


def test_a_warning_that_is_an_error_is_raised_where_the_call_is(session: Standalone) -> None:
    out = run(
        session,
        """
        import warnings
        import torch

        warnings.simplefilter("error")
        one = torch.ones(1, device="cuda")
        for _ in range(2):
            try:
                one.var()
            except UserWarning as warning:
                print("degrees of freedom" in str(warning))
        print(one.item())
        """,
    )
    assert out.split() == ["True", "True", "1.0"]
