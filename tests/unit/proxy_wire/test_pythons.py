"""The `proxy` package on the other Pythons it is for, with nothing else installed."""

import glob
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROXY = Path(__file__).parents[3] / "proxy"
NEED_TORCH = [
    *(f"singularity_proxy.device.{name}" for name in ("control", "graphs", "proxy")),
    *(f"singularity_proxy.worker.{name}" for name in ("capture", "compile")),
    *(f"singularity_proxy.worker.cuda_api.{name}" for name in ("memory", "patches", "properties")),
    *(f"singularity_proxy.worker.cuda_api.{name}" for name in ("settings", "streams", "torch_c")),
    *(f"singularity_proxy.worker.distributed.{name}" for name in ("collectives", "store_guard")),
    "singularity_proxy.worker.distributed.stores",
    "singularity_proxy.worker.native",
]
"""What imports torch, or the native module, when it is imported itself; everything else must not:
every Python process of a session imports it."""
NEED_CRYPTOGRAPHY = [
    f"singularity_proxy.membership.{name}" for name in ("certificates", "dialling", "joining")
]
"""The same of `cryptography`: what only a machine needs that joins a fleet."""

IMPORT_ALL = """
import importlib, pkgutil, sys, singularity_proxy
sys.modules["torch"] = sys.modules["cryptography"] = None  # as if they were not installed
lacking = []
for module in pkgutil.walk_packages(singularity_proxy.__path__, "singularity_proxy."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name in ("torch", "cryptography"), error
            lacking.append(module.name)
print(*lacking)
"""

TALK = """
import asyncio, os, sys, tempfile
from singularity_proxy.errors import Conflict, Unavailable
from singularity_proxy.standalone import Standalone
from singularity_proxy.wire import rpc
from singularity_proxy.wire.ring import RingFile

folder = tempfile.mkdtemp()
ring = RingFile.create(folder + "/a.ring", virtual_device=1, device_type="cpu", memory_capacity=5)
assert ring.read().virtual_device == 1
ring.close()

async def talk():
    async def half(peer, params):
        if params["n"] % 2:
            raise Conflict("odd", n=params["n"])
        return {"half": params["n"] // 2}
    server = await rpc.serve(folder + "/s", {"half": half}, allowed_uids={os.getuid()})
    peer = await rpc.connect(folder + "/s")
    assert await peer.call("half", n=8) == {"half": 4}
    try:
        await peer.call("half", n=3)
    except Conflict as error:
        assert error.fields == {"n": 3}
    await peer.close()
    server.close()
    await server.wait_closed()
asyncio.run(talk())

session = Standalone()
session.__enter__()
try:
    session.wait_warm()
except Unavailable as error:  # its proxy needs torch
    print(error)
finally:
    session.__exit__(None, None, None)
"""


def find(version: str) -> str | None:
    """An interpreter of that version without torch that starts; a shim of pyenv may not."""
    on_path = shutil.which(f"python{version}")
    candidates = [on_path] if on_path else []
    if on_path and "shims" in Path(on_path).parts:
        root = Path(on_path).parents[1]
        candidates = glob.glob(f"{root}/versions/{version}.*/bin/python{version}")
    for candidate in candidates:
        code = "import importlib.util as u; raise SystemExit(u.find_spec('torch') is not None)"
        done = subprocess.run([candidate, "-c", code], capture_output=True, check=False)
        if done.returncode == 0:
            return candidate
    return None


@pytest.fixture(params=["3.10", "3.12", "3.13"])
def python(request: pytest.FixtureRequest) -> str:
    if (found := find(request.param)) is None:
        pytest.skip(f"there is no Python {request.param} without torch on this machine")
    return found


def run(python: str, *arguments: str, code: int = 0) -> str:
    """Its standard output, or its standard error when it has to end with another `code`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"PYTHONPATH": str(PROXY), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
    done = subprocess.run(
        [python, "-W", "error", *arguments],
        env=env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_every_module_compiles_and_imports(python: str, tmp_path: Path) -> None:
    copy = tmp_path / "singularity_proxy"
    no_builds = shutil.ignore_patterns("build", "__pycache__")
    shutil.copytree(PROXY / "singularity_proxy", copy, ignore=no_builds)
    run(python, "-m", "compileall", "-q", str(copy))
    assert len(list(copy.rglob("*.pyc"))) == len(list(copy.rglob("*.py"))) > 20
    lacking = run(python, "-c", IMPORT_ALL).split()
    assert sorted(lacking) == sorted([*NEED_TORCH, *NEED_CRYPTOGRAPHY])


def test_ring_files_calls_and_processes_work(python: str) -> None:
    assert run(python, "-S", "-c", TALK) == "the device proxy did not start (exit code 1)\n"


def test_building_says_that_there_is_no_torch(python: str) -> None:
    said = run(python, "-S", "-m", "singularity_proxy.build", code=1)
    assert said == "PyTorch is not installed here, so there is nothing to build for.\n"
