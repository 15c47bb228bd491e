"""torch.distributed between the ranks of a session: unchanged user code, one function each
(tests/checks/ranks_*.py), as several processes with a virtual device each."""

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from singularity_proxy.elastic.ranks import RankFailed, run_ranks
from singularity_proxy.standalone import Standalone

RUN = Path(__file__).parents[2] / "checks" / "ranks.py"
FEWEST_CHECKS = 63
KNOWN_FAILURES = {
    "ddp_synchronises_batch_norm": "PyTorch has the operators of SyncBatchNorm on GPUs only",
}
"""Check -> why it cannot pass yet. A check that starts to pass must leave this table."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("ranks", "physical"), [(2, 2), (4, 1)], ids=["a device each", "four on one device"]
)
def test_exactly_the_known_checks_fail(
    ranks: int, physical: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    out, printed = tmp_path / "results", list[str]()
    with Standalone(devices=ranks, physical=physical) as session:
        try:
            run_ranks(
                [sys.executable, str(RUN), str(out)],
                ranks,
                session.env(),
                lambda rank, line: printed.append(f"{rank}: {line}"),
            )
        except RankFailed as error:
            printed.append(str(error))
    failed: dict[str, list[str]] = {}
    for rank in range(ranks):
        results = json.loads(Path(f"{out}.{rank}").read_text())
        assert len(results) >= FEWEST_CHECKS, "".join(printed[-30:])
        for name, answer in results.items():
            if answer != "ok" and not answer.startswith("ok:"):
                failed.setdefault(name, []).append(f"rank {rank}: {answer}")
    record_property(f"collective checks with {ranks} ranks", len(results))
    assert set(failed) == set(KNOWN_FAILURES), {
        name: failed.get(name) for name in set(failed) ^ set(KNOWN_FAILURES)
    }


def run_two(session: Standalone, code: str) -> list[str]:
    """What two ranks print, sorted."""
    printed: list[str] = []
    command = [sys.executable, "-c", textwrap.dedent(code)]
    run_ranks(command, 2, session.env(), lambda rank, line: printed.append(f"{rank}: {line}"))
    return sorted(line.rstrip() for line in printed if "RESULT" in line)


def test_two_ranks_on_one_virtual_device_are_refused() -> None:
    with Standalone(devices=1) as session:
        out = run_two(
            session,
            """
            import datetime, os, torch, torch.distributed as dist
            dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60))
            rank = dist.get_rank()
            store = dist.distributed_c10d._get_default_store()
            if rank == 0:
                dist.all_reduce(torch.ones(2, device="cuda"))
                store.set("first", "sent")
                store.wait(["refused"])
            else:
                store.wait(["first"])
                try:
                    dist.all_reduce(torch.ones(2, device="cuda"))
                except dist.DistBackendError as error:
                    print("RESULT", error)
                store.set("refused", "yes")
            os._exit(0)
            """,
        )
    (sentence,) = out
    assert "rank 1 and rank 0 both use cuda:0" in sentence
    assert "This session has 1: start fewer ranks, or ask for more devices" in sentence


def test_groups_that_are_bound_to_a_device_are_split() -> None:
    with Standalone(devices=2) as session:
        out = run_two(
            session,
            """
            import os, torch, torch.distributed as dist
            rank = int(os.environ["RANK"])
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
            both = dist.new_group([0, 1])
            t = torch.ones(2, device="cuda")
            dist.all_reduce(t, group=both)
            alone = dist.split_group(split_ranks=[[0], [1]])
            u = torch.ones(2, device="cuda")
            dist.all_reduce(u, group=alone)
            print("RESULT", t.tolist(), u.tolist(), alone.size())
            dist.destroy_process_group()
            """,
        )
    assert out == [f"{rank}: RESULT [2.0, 2.0] [1.0, 1.0] 1" for rank in range(2)]
