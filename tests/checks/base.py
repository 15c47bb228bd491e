"""What the checks share. Each check is a function without arguments; it passes when it returns None,
and a returned sentence says what went wrong without an exception."""

from collections.abc import Callable

import torch

D = "cuda"
CHECKS: dict[str, Callable[[], object]] = {}


def check(function: Callable[[], object]) -> Callable[[], object]:
    assert function.__name__ not in CHECKS
    CHECKS[function.__name__] = function
    return function


def eq(a, b):
    """Bitwise the same values, wherever they are."""
    torch.testing.assert_close(a.cpu(), b.cpu(), rtol=0, atol=0, equal_nan=True)


def close(a, b, tol=1e-5):
    torch.testing.assert_close(a.cpu(), b.cpu(), rtol=tol, atol=tol)


def raises(kind, text, function):
    """`function` raises one sentence with `text` in it."""
    try:
        function()
    except kind as error:
        assert text in str(error), error
        assert "\n" not in str(error).strip(), error  # one sentence
        return
    raise AssertionError(f"{text}: nothing was raised")
