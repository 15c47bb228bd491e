"""Kernels behind an agent and its relay, spoken to with the real protocol."""

from __future__ import annotations

import sys
from typing import Any

from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.connect import write_connection_file
from support.agent import AgentBox

KERNEL = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")
"""How an agent starts a kernel."""

CELL_S = 60
"""For one cell."""

NO_HISTORY = "--HistoryManager.enabled=False"
"""No database in the home folder, for kernels that are many or move often."""


async def start_kernel(box: AgentBox, *options: str, **launch: Any) -> tuple[str, dict[str, Any]]:
    """Start a session that is a kernel; it and what its clients connect to."""
    session = await box.start([*KERNEL, *options], connection=connection(box), **launch)
    return session, dict(box.started["connection"])


def connection(box: AgentBox) -> dict[str, Any]:
    """A connection file as a Jupyter server makes it, with free ports."""
    path = str(box.work / "client.json")
    _, info = write_connection_file(path, ip="127.0.0.1", key=b"secret", kernel_name="python3")
    return dict(info)


async def client_of(info: dict[str, Any], heartbeat: bool = False) -> AsyncKernelClient:
    """A client whose kernel answers. `heartbeat`: a second without one is a dead kernel to it."""
    client = AsyncKernelClient()
    client.load_connection_info({**info, "key": info["key"].encode()})
    client.start_channels(hb=heartbeat)
    await client.wait_for_ready(timeout=60)
    return client


async def run(client: AsyncKernelClient, code: str, answer: str | None = None) -> str:
    """Run a cell; what it printed or showed. `answer`: to what it asks on stdin."""
    said: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        shown = content.get("text") or content.get("data", {}).get("text/plain")
        said.append(shown or "\n".join(content.get("traceback", [])))

    asked = {}
    if answer is not None:
        asked = {"allow_stdin": True, "stdin_hook": lambda _: client.input(answer)}
    try:
        await client.execute_interactive(code, output_hook=hear, timeout=CELL_S, **asked)
    except TimeoutError:
        raise AssertionError(f"not done after {CELL_S} s, and said: {''.join(said)}") from None
    return "".join(said)
