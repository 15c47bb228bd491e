"""Kernels behind an agent and its relay, spoken to with the real protocol."""

from __future__ import annotations

from typing import Any

from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.connect import write_connection_file
from support.agent import AgentBox


def connection(box: AgentBox) -> dict[str, Any]:
    """A connection file as a Jupyter server makes it, with free ports."""
    path = str(box.work / "client.json")
    _, info = write_connection_file(path, ip="127.0.0.1", key=b"secret", kernel_name="python3")
    return dict(info)


async def client_of(info: dict[str, Any]) -> AsyncKernelClient:
    """A client whose kernel answers."""
    client = AsyncKernelClient()
    client.load_connection_info({**info, "key": info["key"].encode()})
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    return client


async def run(client: AsyncKernelClient, code: str) -> str:
    """Run a cell; what it printed."""
    said: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        said.append(content.get("text") or "\n".join(content.get("traceback", [])))

    await client.execute_interactive(code, output_hook=hear, timeout=60)
    return "".join(said)
