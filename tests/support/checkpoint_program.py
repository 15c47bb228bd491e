"""Run as a process of its own by the fault tests: `checkpoint_program.py JSON`.

Does one thing to the checkpoints of a folder store (save, collect, delete, restore) and kills
itself with SIGKILL at the given occurrence of a step, or stops itself there (SIGSTOP).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.saving.writer import Request
from singularity_proxy.checkpoint.stores.folder import FolderStore

_lock = threading.Lock()


def main(what: dict[str, Any]) -> None:
    store = FolderStore(what["store"])
    box = Checkpoints(store, "alice")
    seen = 0

    def on_step(name: str) -> None:
        nonlocal seen
        with _lock:
            seen += name == what.get("step")
            hit = name == what.get("step") and seen == what.get("count", 1)
        if hit:
            os.kill(os.getpid(), getattr(signal, what.get("signal", "SIGKILL")))

    store.on_step = on_step
    action, options = what["action"], what.get("options", {})
    if action == "save":
        folder = Path(what["source"])
        parts = [
            Part(path.name, "image" if path.suffix == ".img" else "device", str(path))
            for path in sorted(folder.iterdir())
        ]
        box.save(Request(level="process", **options), parts, on_step=on_step)
    elif action == "restore":
        box.restore("s", into=what["target"], on_step=on_step)
    elif action == "collect":
        box.collect(on_step=on_step, **options)
    else:
        box.delete("s", what["checkpoint"], on_step=on_step)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
