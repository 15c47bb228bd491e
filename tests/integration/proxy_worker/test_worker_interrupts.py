"""Ctrl-C while the autograd engine's thread waits for the device, not the main one."""

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


CODE = """
import signal, sys, torch
{before}
x = torch.ones(3, device="cuda", requires_grad=True)
(x * 2).sum().backward()
loss = (x * 5).sum()
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.readline()
try:
    loss.backward()
    print("done", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print({after}, flush=True)
x.grad = None
(x * 3).sum().backward()
print(x.grad.tolist(), flush=True)
"""


def start(session: Standalone, *, before: str = "", after: str = "'and'") -> subprocess.Popen[str]:
    """A worker that is parked in the middle of `backward()`."""
    code = textwrap.dedent(CODE).format(before=before, after=after)
    worker = subprocess.Popen(
        [sys.executable, "-c", code], env=session.env(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdin is not None
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    session.automatic = False
    session.park()
    rings = session.doorbell_rings
    worker.stdin.write("\n")
    worker.stdin.flush()
    deadline = time.monotonic() + 30
    while session.doorbell_rings == rings:
        assert time.monotonic() < deadline, "nobody waits for the device"
        time.sleep(0.02)
    time.sleep(0.3)  # it looks for signals every 50 ms
    return worker


def test_backward_can_be_interrupted_and_repeated(session: Standalone) -> None:
    with start(session) as worker:
        assert worker.stdout is not None
        worker.send_signal(signal.SIGINT)
        assert worker.stdout.readline() == "interrupted\n"
        assert worker.stdout.readline() == "and\n"
        session.attach()
        assert worker.stdout.readline() == "[3.0, 3.0, 3.0]\n"
        assert worker.wait(30) == 0


def test_a_handler_of_the_user_runs_when_backward_is_over(session: Standalone) -> None:
    before = "seen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))"
    with start(session, before=before, after="seen") as worker:
        assert worker.stdout is not None
        worker.send_signal(signal.SIGINT)
        time.sleep(0.3)
        session.attach()
        assert worker.stdout.readline() == "done\n"
        assert worker.stdout.readline() == "[1]\n"
        assert worker.stdout.readline() == "[3.0, 3.0, 3.0]\n"
        assert worker.wait(30) == 0
