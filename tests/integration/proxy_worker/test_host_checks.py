"""What CUDA checks on the host is raised, and what it warns of is told, at the line it is of."""

from __future__ import annotations

import json
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
    "fill of new halves": ("torch.full((2,), {}, dtype=torch.half, device=device)", "1e4", "1e6"),
    "mask by a number of the host": ("h.masked_fill(h > 0, torch.tensor({}))", "1e4", "1e6"),
    "mask by a number of the device": (
        "h.masked_fill(h > 0, torch.tensor({}, device=device))",
        "1e4",
        "1e6",
    ),
    "index_fill": ("h.index_fill(0, n[:1], torch.tensor({}, device=device))", "1e4", "1e6"),
    "powers of a list": ("torch._foreach_pow([n], {})", "2", "-1"),
    "powers in a list": ("torch._foreach_pow([n], [{}])", "2", "-1"),
    "linspace": ("torch.linspace(x[0], {}, 3, dtype=torch.half)", "x[0] + 1", "x[0] + 1e6"),
    "logspace": ("torch.logspace(x[0], {}, 3, dtype=torch.half)", "x[0] + 1", "x[0] + 1e6"),
    "copy": ("{}.copy_(x[:-1])", "y[1:]", "x[1:]"),
    "out": ("torch.add(x[:-1], 1.0, out={})", "y[1:]", "x[1:]"),
    "out of parts": ("torch.split_copy(x, 3, out=[{}[:3], {}[2:5]])", "y", "x"),
}
"""What -> a call, a word with which it works, and one with which it is refused."""

VALUES = {
    "multinomial": ("torch.multinomial(at({}), 1)", "[0.5, 0.5]", "[-0.5, 0.5]"),
    "normal of deviations": ("torch.normal(0.0, at({}))", "[0.5, 0.5]", "[-0.5, 0.5]"),
    "normal of means": ("torch.normal(at([1.0, 2.0]), at({}))", "[0.5, 0.5]", "[-0.5, 0.5]"),
    "histc of values": ("torch.histc(at({}))", "[0.5, 0.7]", "[0.5, float('inf')]"),
    "cholesky": ("torch.cholesky(at({}))", "[[1.0, 0.0], [0.0, 1.0]]", "[[1.0, 0.0], [0.0, -1.0]]"),
    "cholesky_inverse": (
        "torch.cholesky_inverse(at({}))", "[[1.0, 0.0], [0.0, 1.0]]", "[[0.0, 0.0], [0.0, 1.0]]"),
    "sorter": ("torch.searchsorted(at([1.0, 2.0]), at([1.5]), sorter=at({}))", "[0, 1]", "[0, 7]"),
    "segment_reduce": (
        "torch.segment_reduce(at([1.0, 2.0]), 'sum', lengths=at({}))", "[1, 1]", "[1, 9]"),
    "fake_quantize": (
        "torch.fake_quantize_per_channel_affine(at([[1.0]]), at([0.1]), at({}).int(), 0, 0, 9)",
        "[1]", "[70]"),
}  # fmt: skip
"""What -> a call of which CUDA's own code reads values of the device, values, and refused ones."""


@pytest.fixture(scope="module")
def caught(session: Standalone) -> dict[str, list[list[str] | None]]:
    """Call -> the errors at its own line, natively and proxied: their type and text."""
    out = run(
        session,
        """
        import json, warnings
        import torch
        from torch.nn import functional as F

        warnings.simplefilter("ignore")

        def caught(device, call, good, bad):
            torch.manual_seed(1)
            x, y = torch.rand(6, device=device), torch.rand(6, device=device)
            m, n = torch.rand(2, 3, device=device), torch.arange(1, 5, device=device)
            h = torch.ones(6, dtype=torch.half, device=device)
            names = {**globals(), **locals(), "at": lambda v: torch.tensor(v, device=device)}
            for _ in range(3):
                eval(call.replace("{}", good), names)
            try:
                eval(call.replace("{}", bad), names)
            except Exception as error:
                x.sum().item()
                return type(error).__name__, str(error)
            try:
                torch.cuda.synchronize()
            except Exception as error:
                return "too late", str(error)
            return None

        calls = CALLS
        found = {}
        for what, words in calls.items():
            found[what] = [caught(device, *words) for device in ("cpu", "cuda")]
        print(json.dumps(found))
        """.replace("CALLS", repr(CALLS | VALUES)),
    )
    found: dict[str, list[list[str] | None]] = json.loads(out)
    return found


@pytest.mark.parametrize("what", CALLS | VALUES)
def test_a_wrong_number_or_overlap_is_refused_at_its_own_line(
    caught: dict[str, list[list[str] | None]], what: str
) -> None:
    native, proxied = caught[what]
    assert proxied == native
    assert native is not None


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
