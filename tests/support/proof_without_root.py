"""A proof by an agent that is not root; run as such by tests. Prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from singularity_proxy.capsule.images import criu
from support.capsules import WHY, Places
from support.proofs import BUSY, Taken, fingerprint


async def main() -> dict[str, Any]:
    if not criu.probe().ok:
        return {"why": f"{WHY} {criu.probe().reason}"}
    async with Places() as place:
        running = await place.python(BUSY)
        await place.logged("ready")
        with tempfile.TemporaryDirectory(prefix="pr-") as folder:
            taken = Taken(place, Path(folder) / "taken")
            await taken.take(running)
            before = fingerprint(place.home)
            capsule = await taken.sealed()
            place.capsules.append(capsule)
            await taken.prove(capsule)
            found = {
                "why": WHY,
                "user_namespace": capsule.user_namespace,
                "frozen": capsule.frozen,
                "unchanged": fingerprint(place.home) == before,
            }
            await capsule.end(0)
        return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))
