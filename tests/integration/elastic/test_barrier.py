"""The barrier of ranks with several process groups that do not go at one pace, at random moments:
1,000 of them in a full run, spread over 4, 2 and 1 physical devices."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from singularity_proxy.standalone import Standalone
from support import uneven_ranks
from support.matrix import is_full, seed, some_of

from benchmarks.jobs import Job

TRIGGERS = 334 if is_full() else 12
HANGS_S = 30.0


@pytest.mark.timeout(300 + TRIGGERS)
@pytest.mark.parametrize("physical", some_of([4, 2, 1], 2))
def test_uneven_ranks_of_several_groups_always_stop(physical: int) -> None:
    chance = random.Random(f"{seed()}/{physical}")
    with Standalone(devices=4, physical=physical) as session:
        job = Job(session, "uneven", file=Path(uneven_ranks.__file__))
        job.wait_for_step(3)
        for _ in range(TRIGGERS):
            before = job.step
            cut = session.barrier(HANGS_S)  # raises when they do not come together
            # All ranks, two pairs, three ranks, and the messages from 0 to 3.
            groups = [key for key in cut.contributed if ":" not in key]
            assert len(groups) == 4
            assert any(key.endswith(":0>3") for key in cut.contributed)
            assert min(cut.contributed.values()) > 0
            assert job.running, job.printed()
            time.sleep(chance.uniform(0, 0.05))
        job.wait_for_step(before + 1)  # and they went on
        job.stop()
