"""Packages and environments of a user's own: pip in a kernel, and what is under the proxy."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from singularity_kernel.provision.own_environment import main
from singularity_proxy.layers import Layer, own_packages
from support.kernel_notebooks import Notebook, manager
from support.small_wheels import make_wheel

SUM = "import torch; print(torch.ones(3, device='cuda').sum().item())"


@contextlib.asynccontextmanager
async def opened(kernel: AsyncKernelManager) -> AsyncIterator[Notebook]:
    """A notebook on a kernel, which ends with it."""
    await kernel.start_kernel()
    notebook = Notebook(kernel)
    notebook.client.start_channels()
    try:
        await notebook.client.wait_for_ready(timeout=60)
        yield notebook
    finally:
        notebook.client.stop_channels()
        await kernel.shutdown_kernel(now=True)
        kernel.context.destroy(linger=0)


def owned(folder: Path, home: Path) -> None:
    """Give a folder of a user's home to the user."""
    subprocess.run(["chown", "-R", f"--reference={home}", str(folder)], check=True)


@pytest.fixture
def layer(home: Path, monkeypatch: pytest.MonkeyPatch) -> Layer:
    """The packages of ada's own, as the spawner makes them."""
    found = own_packages(str(home))
    found.make()
    owned(home / ".local", home)
    monkeypatch.setenv("PATH", f"{found.programs}:{os.environ['PATH']}")
    return found


@pytest.mark.asyncio
async def test_pip_in_a_notebook_installs_for_its_user_alone(
    home: Path, layer: Layer, tmp_path: Path
) -> None:
    wheel = make_wheel(home, "own_numbers", "1.0", "VALUE = 42\n")
    async with opened(manager(tmp_path)) as notebook:
        assert await notebook.run("import sys; print(sys.prefix)") == layer.folder
        said = await notebook.run(f"%pip install --no-index {wheel}")
        assert "Successfully installed own" in said
        assert await notebook.run("import own_numbers; print(own_numbers.VALUE)") == "42"
        code = "!python -c 'import own_numbers as o; print(o.VALUE, o.__file__)'"
        value, file = (await notebook.run(code)).split()
        assert value == "42"
        assert file.startswith(layer.folder)
        assert "none held now" in await notebook.run("%singularity")


def venv_with_ipykernel(folder: Path, home: Path) -> Path:
    """A virtual environment as a user makes one, with ipykernel in it and nothing of ours: what is
    imported from here is not what a `.pth` file of here does."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    here = sysconfig.get_path("purelib")
    packages = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    (Path(packages) / "packages.pth").write_text(f"{here}\n")
    owned(folder, home)
    return folder / "bin/python"


def kernel_of(home: Path, name: str) -> AsyncKernelManager:
    """A manager of a kernel that the user has registered."""
    specs = KernelSpecManager(kernel_dirs=[str(home / "kernels")], ensure_native_kernel=False)
    return AsyncKernelManager(kernel_name=name, kernel_spec_manager=specs)


def register(home: Path, name: str, argv: Sequence[str]) -> None:
    """Register a kernel as ``python -m ipykernel install --user`` does, for a server that starts
    all of them as sessions."""
    folder = home / "kernels" / name
    folder.mkdir(parents=True)
    spec = {"argv": [*argv, "-f", "{connection_file}"], "display_name": name, "language": "python"}
    provisioner = {"kernel_provisioner": {"provisioner_name": "singularity", "config": {}}}
    (folder / "kernel.json").write_text(json.dumps({**spec, "metadata": provisioner}))


@pytest.mark.asyncio
async def test_a_venv_of_ones_own_says_that_it_is_outside_and_can_be_brought_in(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = venv_with_ipykernel(home / "plain", home)
    register(home, "plain", [str(python), "-m", "ipykernel_launcher"])
    async with opened(kernel_of(home, "plain")) as notebook:
        said = await notebook.run("print(1 + 1)")
        assert f"This kernel's Python ({python}) is not under the device proxy" in said
        assert said.count("\n") == 1
        assert await notebook.run("import sys; print('tell' in globals())") == "False"
        assert await notebook.run("print('singularity_proxy' in sys.modules)") == "False"

    assert main([str(home / "plain"), "--kernel", "within"]) == 0
    assert f"{home}/plain is ready" in capsys.readouterr().out
    owned(home / "plain", home)
    async with opened(kernel_of(home, "within")) as notebook:
        assert await notebook.run("import sys; print(sys.executable)") == str(python)
        assert await notebook.run(SUM) == "3.0"
        assert "cuda:0" in await notebook.run("%singularity")
