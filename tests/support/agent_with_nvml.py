"""The node agent on a machine with two GPUs that are not there: NVML's answers are replayed from
the file in NVML_WORLD, device proxies are `agent_proxy_double.py`."""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from singularity_scheduler.agent.app import main
from singularity_scheduler.agent.devices import probe, proxies
from support import nvml_replies
from support.agent_refusing import Commands

GPUS = [("NVIDIA H200", 150_754_820_096, f"0000000{i}-1111-2222-3333-444444444444") for i in (0, 1)]


async def probed(folder: str) -> list[tuple[str, int, str]]:
    return GPUS


def command(socket: str) -> list[str]:
    double = Path(__file__).with_name("agent_proxy_double.py")
    return [sys.executable, str(double), "--socket", socket]


found: Any = probe
found._probe_cuda = probed
proxies.make_starter = lambda _: Commands(command)
sys.modules["pynvml"] = nvml_replies.install(os.environ["NVML_WORLD"])
main()
