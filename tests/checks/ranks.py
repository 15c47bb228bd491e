"""Runs checks of torch.distributed in this rank: `python ranks.py OUT [NAME...]`, started once per
rank with torchrun's variables. Rank r writes its results to OUT.r.

User code, like `run.py`: it imports nothing of the project. Every check is called by all ranks in
the same order, with the groups it makes itself, so that one that fails does not take the next ones
along.
"""

import datetime
import faulthandler
import importlib
import json
import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
import torch.distributed as dist
from checks.base import CHECKS

SECONDS = 60

for module in ("collectives", "groups", "errors", "training", "sharded"):
    importlib.import_module(f"checks.ranks_{module}")


def main() -> None:
    wanted = sys.argv[2:]
    rank, device = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    out = Path(f"{sys.argv[1]}.{rank}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.cuda.set_device(device)
    limit = datetime.timedelta(seconds=SECONDS)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=limit)
    results: dict[str, str] = {}
    for name, check in CHECKS.items():
        if wanted and name not in wanted:
            continue
        results[name] = "FAIL hang or crash"
        out.write_text(json.dumps(results))
        faulthandler.dump_traceback_later(SECONDS * 2, exit=True)
        try:
            answer = check()
            results[name] = "ok" if answer is None else str(answer)
        except BaseException as error:
            text = str(error).splitlines()
            results[name] = f"FAIL {type(error).__name__}: {text[0][:400] if text else ''}"
            if wanted:
                raise
        faulthandler.cancel_dump_traceback_later()
        dist.monitored_barrier(dist.new_group(backend="gloo"), timeout=limit)
    out.write_text(json.dumps(results, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
