"""Where the agent's sockets and rings lie: chosen once, and found again after a restart."""

from __future__ import annotations

import os
import shutil

from singularity_proxy.errors import SingularityError

from .folders import new_folder, own_folder
from .ledger import Ledger


def take_place(
    state_dir: str, ledger: Ledger, wanted_runtime: str, wanted_shm: str
) -> tuple[str, str]:
    """(runtime folder, folder in shared memory), made or taken over from the agent before this one.

    Called once at the agent's start. What the ledger knows of an earlier boot of the machine is
    dropped. An empty wish means a new folder. Raises `SingularityError` for one that cannot be.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    before = ledger.get("node", "place") or {}
    if before.get("boot") != boot:
        # The machine was restarted: no process and no shared memory of before exists.
        for name, _ in list(ledger.all("session")):
            ledger.forget_session(name)
            shutil.rmtree(os.path.join(state_dir, "checkpoints", name), ignore_errors=True)
        for name, _ in list(ledger.all("relay")):
            ledger.drop("relay", name)
        ledger.drop("node", "leases")
        ledger.drop("node", "lease")
        ledger.drop("node", "parks")  # another driver may be loaded
        if before:
            shutil.rmtree(before["runtime_dir"], ignore_errors=True)
        before = {}
    if before and list(ledger.all("session")):
        # Living sessions know their sockets by name: new settings have to wait.
        runtime_dir, shm_dir = before["runtime_dir"], before["shm_dir"]
    else:
        if wanted_runtime and len(os.path.abspath(wanted_runtime)) >= 60:
            raise SingularityError(
                f"runtime_dir {wanted_runtime} is too long for unix sockets (59 characters at most)"
            )
        runtime_dir = wanted_runtime or before.get("runtime_dir") or new_folder("/tmp")
        shm_dir = wanted_shm or before.get("shm_dir") or new_folder("/dev/shm")
    runtime_dir, shm_dir = os.path.abspath(runtime_dir), os.path.abspath(shm_dir)
    ledger.put("node", "place", {"boot": boot, "runtime_dir": runtime_dir, "shm_dir": shm_dir})
    for folder, mode in (
        (runtime_dir, 0o711),
        (os.path.join(runtime_dir, "s"), 0o711),
        (os.path.join(runtime_dir, "p"), 0o700),
        (shm_dir, 0o711),
    ):
        own_folder(folder, mode)
    return runtime_dir, shm_dir
