"""A command of several ranks: what all of them print is in the log, live and after the end, and a
cancelled one leaves none of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.batch_runs import Runs, processes_of
from support.kernel_relay import wait_until

TRAIN = r"""
import os, signal, sys, time, torch
import torch.distributed as dist

rank = int(os.environ["RANK"])

def say(text, stream=sys.stdout):
    # In one write: torchrun starts ranks unbuffered, print() of several values or of a line end
    # writes piece by piece then, and lines of ranks that share a log mix.
    stream.write(f"rank {rank} {text}\n")

def end(*_):
    say("was asked to end")
    os._exit(0)

signal.signal(signal.SIGTERM, end)
dist.init_process_group("gloo")
for step in range(int(sys.argv[1])):
    total = torch.full((4,), float(rank + step))
    dist.all_reduce(total)
    say(f"step {step} total {total.sum().item()}")
    say(f"says {step}", sys.stderr)
    time.sleep(0.2)
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_torchrun_is_followed_live_and_cancelled_with_grace(runs: Runs, short_dir: Path) -> None:
    (short_dir / "train.py").write_text(TRAIN)
    run = {
        "command": "torchrun --nproc-per-node 2 train.py 100000",
        "folder": str(short_dir),
        "variables": runs.variables(),
    }
    sid = runs.ask(lambda service: service.submit(run=run, devices=2))["id"]
    follow = subprocess.Popen(
        [sys.executable, "-m", "jupyter", "singularity", "logs", "-f", sid],
        env=runs.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    seen = ""
    try:
        assert follow.stdout is not None
        wanted = {f"rank {r} step 3 total {4.0 * (2 * 3 + 1)}\n" for r in (0, 1)}
        wanted |= {f"rank {r} says 3\n" for r in (0, 1)}
        while not all(line in seen for line in wanted):  # while it runs
            line = follow.stdout.readline()
            assert line, seen
            seen += line
        assert runs.session(sid)["process_state"] == "live"
        ended = runs.ask(lambda service: service.end_session(sid, "enough", grace_s=60.0))
        rest, _ = follow.communicate(timeout=120)
    finally:
        follow.kill()
        follow.wait()
    assert ended["state"] == "cancelled"
    wait_until(lambda: processes_of(sid) == {}, 20, "a rank outlived its run")
    after = runs.command("logs", sid)
    for rank in (0, 1):
        assert f"rank {rank} was asked to end\n" in seen + rest
        assert f"rank {rank} was asked to end\n" in after.stdout
        assert f"rank {rank} step 0 " in after.stdout
