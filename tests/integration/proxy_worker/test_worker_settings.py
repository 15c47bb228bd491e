"""torch's process-wide settings: the proxy computes each worker's operators under its own, in
order, also after it was parked or killed, and also when several workers of a session differ."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest
from singularity_proxy.standalone import Standalone


@pytest.fixture
def session() -> Iterator[Standalone]:
    with Standalone(capacity_bytes=1 << 30) as one:
        yield one


def start(session: Standalone, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], env=session.env(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def answer(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def go_on(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()


TELL = """
import sys, torch
i = torch.arange(3, device="cuda")
x = torch.zeros(4, device="cuda")
def deterministic():
    try:
        x.put_(i, torch.ones(3, device="cuda"))
        torch.cuda.synchronize()
        return False
    except RuntimeError as error:
        return "deterministic" in str(error)
def tell():
    print((i / 2).dtype, torch.sqrt(i).dtype, deterministic(), flush=True)
"""


@pytest.mark.parametrize("how", ["park", "kill"])
def test_settings_outlive_the_proxy(session: Standalone, how: str) -> None:
    worker = start(
        session,
        TELL
        + """
tell()
torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)
tell()
sys.stdin.readline()
tell()
torch.set_default_dtype(torch.float32)
torch.use_deterministic_algorithms(False)
tell()
""",
    )
    with worker:
        assert answer(worker) == "torch.float32 torch.float32 False"
        assert answer(worker) == "torch.float64 torch.float64 True"
        before = session.rings()[0].read().generation
        if how == "park":
            session.park()
        else:
            os.kill(session.proxy_pids()[0], signal.SIGKILL)
        deadline = time.monotonic() + 30
        while session.rings()[0].read().generation == before:  # a killed process takes its time
            assert time.monotonic() < deadline
            session.attach()
            time.sleep(0.02)
        go_on(worker)
        assert answer(worker) == "torch.float64 torch.float64 True"
        assert answer(worker) == "torch.float32 torch.float32 False"
        assert worker.wait(30) == 0


def test_two_workers_of_a_proxy_do_not_disturb_each_other(session: Standalone) -> None:
    """Each runs many operators under its own settings, at the same time, and sees nobody else's."""
    code = """
    import sys, torch
    dtype = getattr(torch, sys.argv[1])
    torch.set_default_dtype(dtype)
    i = torch.arange(64, device="cuda")
    bad, x = 0, i / 2
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(400):
        bad += (i / (n + 2)).sum().dtype != dtype
        bad += torch.ones(3, device="cuda").dtype != dtype
        x = x + torch.sqrt(i)  # an answer of another dtype would not fit its memory
        if n % 40 == 0:
            bad += not torch.isfinite(x).all().item()
    expected = torch.arange(64).to(dtype) / 2
    for n in range(400):
        expected = expected + torch.sqrt(torch.arange(64))
    print(bad, torch.equal(x.cpu(), expected), flush=True)
    """
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), dtype], env=session.env(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for dtype in ("float32", "float64")
    ]  # fmt: skip
    try:
        assert [answer(w) for w in workers] == ["ready", "ready"]
        assert len(session.proxy_pids()) == 1
        for worker in workers:
            go_on(worker)
        assert [answer(w) for w in workers] == ["0 True", "0 True"]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_settings_apply_in_order_with_the_operators(session: Standalone) -> None:
    """Nobody waits in between: a setting must not overtake what was asked before it."""
    worker = start(
        session,
        """
        import torch
        i = torch.arange(5, device="cuda")
        for dtype in (torch.float64, torch.float32):  # now both are known, nothing waits any more
            torch.set_default_dtype(dtype)
            i / 3
        results = []
        for n in range(50):
            torch.set_default_dtype(torch.float64 if n % 2 else torch.float32)
            results.append(i / 3)
        from singularity_proxy.worker.native import native
        print(native.stats(0)["sync_records"] < 30)
        host = [r.cpu() for r in results]
        print(all(h.dtype == (torch.float32, torch.float64)[n % 2] for n, h in enumerate(host)))
        print(all(torch.equal(h, torch.arange(5, dtype=h.dtype) / 3) for h in host))
        """,
    )
    with worker:
        assert [answer(worker) for _ in range(3)] == ["True"] * 3
        assert worker.wait(30) == 0
