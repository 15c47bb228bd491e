"""Runs the checks in this process and writes their results: `python run.py OUT.json [NAME...]`.

It is user code: it imports nothing of the project, and the process it runs in is a worker only
because of its environment.
"""

import faulthandler
import importlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
from checks.base import CHECKS

for module in ("operators", "tensors", "errors", "training", "layers", "runtime", "memory", "api"):
    importlib.import_module(f"checks.cuda_{module}")


def hang(*_: object) -> None:
    raise TimeoutError("hang")


def main() -> None:
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, hang)
    results: dict[str, str] = {}
    for name, check in CHECKS.items():
        if wanted and name not in wanted:
            continue
        results[name] = "FAIL hang or crash"
        out.write_text(json.dumps(results))
        signal.alarm(60)
        faulthandler.dump_traceback_later(90, exit=True)
        try:
            answer = check()
            results[name] = "ok" if answer is None else str(answer)
        except BaseException as error:
            results[name] = (
                f"FAIL {type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"
            )
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
    out.write_text(json.dumps(results, indent=1))
    sys.stdout.flush()
    os._exit(0)  # worker processes of data loaders may still be there


if __name__ == "__main__":  # children of a data loader import it again
    main()
