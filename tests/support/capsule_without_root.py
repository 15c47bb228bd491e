"""What an agent that is not root does with capsules; run as such by tests. Prints JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from singularity_proxy.capsule import namespace
from singularity_proxy.capsule.images import criu, image
from singularity_proxy.capsule.launcher import CapsuleSpec

CODE = """
import os, time
print(os.getpid(), os.getuid(), sorted(os.listdir("/dev/shm")), flush=True)
while not os.path.exists("/tmp/stop"):
    time.sleep(0.01)
raise SystemExit(7)
"""


async def main() -> dict[str, Any]:
    launcher, why = namespace.probe()
    if launcher is None:
        return {"why": why}
    with tempfile.TemporaryDirectory(prefix="nr-") as name:
        root = Path(name)
        (root / "tmp").mkdir()
        log = root / "log"
        spec = CapsuleSpec(
            argv=[sys.executable, "-c", CODE],
            env={"PATH": os.environ["PATH"]},
            cwd="/",
            log_path=str(log),
            tmp=str(root / "tmp"),
            keep=(str(root),),
        )
        capsule = await launcher.start(spec)
        while "\n" not in log.read_text():
            await asyncio.sleep(0.01)
        user_namespace = capsule.user_namespace
        await asyncio.to_thread(capsule.freeze)
        frozen = capsule.frozen
        image_reason = ""
        if criu.probe().ok:
            await asyncio.to_thread(image.dump, capsule, str(root / "image"))
            await capsule.end(0)
            capsule = await launcher.prepare(spec)
            await asyncio.to_thread(image.restore, capsule, str(root / "image"))
        else:
            image_reason = criu.probe().reason
        await asyncio.to_thread(capsule.thaw)
        (root / "tmp" / "stop").touch()
        await capsule.wait(30)
        return {
            "why": why,
            "user_namespace": user_namespace,
            "frozen": frozen,
            "no_image": image_reason,
            "log": log.read_text(),
            "exit_code": capsule.watch.exit_code,
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))
