"""What this node has: its devices and the torch that its device proxies run.

torch is never imported in the agent. Its version is read from its files; GPUs are counted by a
short process of their own, and only where the driver's control device exists.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import sys
import uuid
from dataclasses import dataclass
from typing import Any

from singularity_proxy.errors import Unavailable, Unsupported
from singularity_proxy.probes import CutShort, is_passing

from singularity_scheduler.agent.processes import ask_process

CPU_DEVICES = 2
"""How many devices a node without GPUs has when nobody says a number."""

_CUDA_PROBE = """
import json, torch
found = []
if torch.cuda.is_available():
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        found.append([p.name, p.total_memory, str(getattr(p, "uuid", ""))])
print(json.dumps(found))
"""


@dataclass(frozen=True)
class TorchVersion:
    """The torch that device proxies of this agent import."""

    version: str
    git_version: str


def torch_version() -> TorchVersion | None:
    """Read from the files of the installed torch; None when there is none. Raises `Unavailable`
    when it cannot be read at the moment."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = os.path.join(spec.submodule_search_locations[0], "version.py")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        if is_passing(error):
            raise Unavailable(
                f"the version of torch cannot be read now ({error.strerror}); nothing was changed, "
                "start the agent again"
            ) from None
        return None
    found = dict(re.findall(r"^(__version__|git_version)\s*=\s*'([^']*)'", text, re.MULTILINE))
    return TorchVersion(found.get("__version__", "unknown"), found.get("git_version", "unknown"))


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


async def probe_devices(
    device_type: str, count: int, capacity_bytes: int, folder: str, node: str = "local"
) -> list[dict[str, Any]]:
    """The devices of `node` as `hello` reports them: id, type, capacity_bytes, name, uuid. A UUID
    stays with its card; that of a cpu device is made up of the node's name and its number.

    `device_type`: "cpu", "cuda", or "auto" (cuda where torch finds GPUs, else cpu). For cpu there
    are `count` devices of `capacity_bytes` each (0: two); for cuda `count` 0 means all that there
    are, and the capacity is each card's memory. Raises `Unsupported` for cuda asked for in vain,
    `Unavailable` when nobody could say whether there are GPUs.
    """
    gpus: list[tuple[str, int, str]] = []
    if device_type in ("auto", "cuda"):
        gpus = await _probe_cuda(folder)
        if device_type == "cuda" and not gpus:
            raise Unsupported(
                "torch finds no CUDA device on this node; start the agent with "
                "device_type='cpu', or repair the driver (nvidia-smi shows what it says)"
            )
    if gpus:
        return [
            {
                "id": f"cuda:{i}",
                "type": "cuda",
                "capacity_bytes": memory,
                "name": name,
                "uuid": f"GPU-{card}" if card else "",
            }
            for i, (name, memory, card) in enumerate(gpus[: count or None])
        ]
    name = _cpu_name()
    return [
        {
            "id": f"cpu:{i}",
            "type": "cpu",
            "capacity_bytes": capacity_bytes,
            "name": name,
            "uuid": f"CPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{node}/cpu:{i}')}",
        }
        for i in range(count or CPU_DEVICES)
    ]


def _driver_present() -> bool:
    return any(os.path.exists(p) for p in ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl"))


async def _probe_cuda(folder: str) -> list[tuple[str, int, str]]:
    if not _driver_present():
        return []
    try:
        code, output = await ask_process([sys.executable, "-c", _CUDA_PROBE], folder)
    except CutShort as error:
        if error.crashed:
            return []
        raise Unavailable(
            f"torch could not be asked which GPUs this node has: {error}; nothing was changed, "
            "start the agent again"
        ) from None
    if code != 0 or not output.strip():
        return []
    try:
        found = json.loads(output.splitlines()[-1])
        return [(str(name), int(memory), str(card)) for name, memory, card in found]
    except (ValueError, TypeError):
        return []
