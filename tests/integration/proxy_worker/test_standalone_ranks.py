"""Several virtual devices on fewer physical ones, and changes of their number while code runs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.errors import BadRequest
from singularity_proxy.standalone import Standalone

PIPELINE = """
import sys, torch
from torch import nn
torch.manual_seed(0)
make = lambda: nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1), nn.Tanh())
stages = [make().to(f"cuda:{i}") for i in range(4)]
optimizer = torch.optim.Adam([p for s in stages for p in s.parameters()], lr=1e-2)
x = torch.randn(16, 32)
for step in range(int(sys.argv[1])):
    y = x
    for i, stage in enumerate(stages):
        y = stage(y.to(f"cuda:{i}"))
    loss = (y - x.to("cuda:3")).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(loss.item().hex(), flush=True)
parallel = nn.DataParallel(nn.Linear(32, 4).cuda(), device_ids=[0, 1, 2, 3])
print([round(v, 5) for v in parallel(x.cuda()).sum(0).tolist()])
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Standalone]:
    with Standalone(devices=4, physical=2, capacity_bytes=1 << 30) as one:
        yield one


def pipeline(session: Standalone, steps: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PIPELINE, str(steps)],
        env=session.env(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_one_process_with_four_devices_on_four_to_one(session: Standalone) -> None:
    """A pipeline by hand and DataParallel, while the number of physical devices changes."""
    undisturbed, _ = pipeline(session, 60).communicate(timeout=200)
    assert len(session.proxy_pids()) == 2
    assert session.placement == ["cpu:0", "cpu:0", "cpu:1", "cpu:1"]
    worker = pipeline(session, 60)
    assert worker.stdout is not None
    lines = [worker.stdout.readline() for _ in range(5)]
    for count, moved in ((1, [2, 3]), (4, [1, 2, 3]), (2, [1, 2, 3]), (3, [1, 2, 3])):
        before = session.placement
        answer = session.resize(count)
        assert len(session.proxy_pids()) == count == len(set(session.placement))
        changed = [v for v in range(4) if before[v] != session.placement[v]]
        assert answer["moved"] == changed
        assert set(changed) <= set(moved)
        lines += [worker.stdout.readline() for _ in range(5)]
    with worker.stdout:  # not by `communicate`, which loses what `readline` read ahead
        rest = worker.stdout.read()
    assert worker.wait(200) == 0
    assert "".join(lines) + rest == undisturbed


def test_rings_of_ended_workers_are_closed(session: Standalone) -> None:
    pipeline(session, 1).communicate(timeout=200)
    until = time.monotonic() + 10
    while any(proxy["rings"] for proxy in session.stats()) or list(session.shm.glob("*.ring")):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_killed_proxy_is_replaced_at_once(session: Standalone) -> None:
    session.resize(2)
    undisturbed, _ = pipeline(session, 40).communicate(timeout=200)
    worker = pipeline(session, 40)
    assert worker.stdout is not None
    lines = [worker.stdout.readline() for _ in range(5)]
    for pid in session.proxy_pids():
        os.kill(pid, signal.SIGKILL)
        lines += [worker.stdout.readline() for _ in range(3)]
    with worker.stdout:  # not by `communicate`, which loses what `readline` read ahead
        rest = worker.stdout.read()
    assert worker.wait(200) == 0
    assert "".join(lines) + rest == undisturbed


def test_numbers_that_cannot_be(session: Standalone) -> None:
    before = session.placement
    for count in (0, 5):
        with pytest.raises(BadRequest, match="4 virtual devices run on 1 to 4"):
            session.resize(count)
    with pytest.raises(BadRequest, match="1 devices were named for 4"):
        session.attach(["cpu:0"])
    assert session.placement == before


def test_ranks_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        textwrap.dedent(
            """
            import os, sys, torch
            rank = int(os.environ["LOCAL_RANK"])
            torch.cuda.set_device(rank)
            x = torch.full((3,), float(rank), device="cuda")
            print(rank, os.environ["WORLD_SIZE"], x.device, x.sum().item(), sys.argv[1:])
            sys.exit(7 if rank == 1 and "fail" in sys.argv else 0)
            """
        )
    )
    command = [sys.executable, "-m", "singularity_proxy.standalone", "--devices", "2"]
    command += ["--physical", "1", "--threads", "1", "--nproc", "2", str(file)]
    done = subprocess.run(
        [*command, "--lr", "1"], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "0 2 cuda:0 0.0 ['--lr', '1']",
        "1 2 cuda:1 3.0 ['--lr', '1']",
    ]
    failed = subprocess.run(
        [*command, "fail"], capture_output=True, text=True, timeout=200, check=False
    )
    assert failed.returncode == 7
    assert "rank 1 ended with exit code 7; the other ranks were ended" in failed.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_command_takes_everything_with_it(tmp_path: Path, ranks: int) -> None:
    """SIGTERM ends the script, the proxies and the session's files."""
    file = tmp_path / "train.py"
    file.write_text(
        textwrap.dedent(
            """
            import os, time, torch
            torch.ones(1, device="cuda").item()
            print(os.getpid(), os.environ["SINGULARITY_SESSION"],
                  os.path.dirname(os.environ["SINGULARITY_SOCKET"]), flush=True)
            time.sleep(600)
            """
        )
    )
    command = [sys.executable, "-m", "singularity_proxy.standalone", "--nproc", str(ranks)]
    with subprocess.Popen([*command, str(file)], stdout=subprocess.PIPE, text=True) as main:
        assert main.stdout is not None
        lines = [main.stdout.readline().split() for _ in range(ranks)]
        watched = [os.pidfd_open(int(pid)) for pid, *_ in lines]
        _, session, folder = lines[0]
        main.send_signal(signal.SIGTERM)
        assert main.wait(60) == 128 + signal.SIGTERM
    for process in watched:
        assert select.select([process], [], [], 0)[0], "the script is still there"
        os.close(process)
    assert not Path(folder).exists()
    assert not Path(f"/dev/shm/singularity-{session}").exists()
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if session_of(p) == folder]


def session_of(command_line: Path) -> str:
    """The folder that a device proxy with this command line serves."""
    try:
        words = command_line.read_text().split("\0")
    except OSError:
        return ""
    return str(Path(words[words.index("--socket") + 1]).parent) if "--socket" in words else ""
