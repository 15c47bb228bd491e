"""Notebooks of our kernelspec, as a Jupyter server starts them, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from singularity_kernel.provision.provisioner import SingularityProvisioner

ROOT = Path(__file__).resolve().parents[2]


def manager(tmp_path: Path, **config: Any) -> AsyncKernelManager:
    """A manager of our kernelspec, with `config` of the provisioner."""
    spec = json.loads((ROOT / "kernel_ext/kernelspec/kernel.json").read_text())
    spec["metadata"]["kernel_provisioner"]["config"] = config
    (tmp_path / "singularity").mkdir()
    (tmp_path / "singularity/kernel.json").write_text(json.dumps(spec))
    specs = KernelSpecManager(kernel_dirs=[str(tmp_path)], ensure_native_kernel=False)
    return AsyncKernelManager(kernel_name="singularity", kernel_spec_manager=specs)


class Notebook:
    def __init__(self, manager: AsyncKernelManager) -> None:
        self.manager = manager
        self.client = manager.client()

    @property
    def session(self) -> str:
        assert isinstance(self.manager.provisioner, SingularityProvisioner)
        assert self.manager.provisioner.session_id is not None
        return self.manager.provisioner.session_id

    async def run(self, code: str) -> str:
        texts = []

        def output(message: dict[str, Any]) -> None:
            content = message["content"]
            texts.append(content.get("text") or content.get("data", {}).get("text/plain", ""))
            texts.append("\n".join(content.get("traceback", ())))

        await self.client.execute_interactive(code, output_hook=output, timeout=60)
        return "".join(texts).strip()
