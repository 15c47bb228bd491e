"""The wheel of `./dev wheel`: the way in for administrators. It is installed with its extras into
an empty environment in which torch is, where no compiler works, and runs the platform."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy import build
from singularity_spawner.platform.ports import free_ports
from singularity_spawner.platform.tools import PROXY_PROGRAM
from support.hub_platform import Person, state_folder
from support.hub_up import up

ROOT = Path(__file__).parents[3]
NO_COMPILER = {"CXX": "/bin/false", "PYTHONPATH": "", "VIRTUAL_ENV": ""}
TORCH = ("torch", "torchgen", "functorch", "torch-*.dist-info")


def link(source: str, target: str) -> None:
    """Copy a file that nobody writes to."""
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `./dev wheel` makes at its end, of the libraries that the checkout has."""
    files = [build.build(), build.build_program(build.PACKAGE / "capsule/holder.cpp")]
    folder = tmp_path_factory.mktemp("wheel")
    command = ("pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    run(sys.executable, "-m", *command, SINGULARITY_PREBUILT=":".join(map(str, files)))
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def prefix(wheel: Path) -> Iterator[Path]:
    """An environment with torch and the wheel. Below /var/tmp and open, as servers of other users
    read it."""
    folder = Path(f"/var/tmp/singularity-wheel-{os.getpid()}")
    run(sys.executable, "-m", "venv", folder)
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    for pattern in TORCH:
        for source in Path(sysconfig.get_path("purelib")).glob(pattern):
            shutil.copytree(source, packages / source.name, copy_function=link)
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():  # the cache of `./dev` saves a minute
        shutil.copy(uv, folder / "bin")
        command = [folder / "bin/python", ROOT / "tools/uv_install.py"]
    else:
        command = [folder / "bin/pip", "install", "-q"]
    run(*command, "-c", ROOT / "requirements/platform.lock", f"{wheel}[hub,kernel]")
    yield folder
    shutil.rmtree(folder)


def test_it_names_the_python_and_machine_that_its_modules_are_for(wheel: Path) -> None:
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert f"-{tag}-{tag}-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    library = build.library_name(build.Torch.find())
    assert f"singularity_proxy/native/prebuilt/{library}" in names
    assert [x for x in names if x.startswith("singularity_proxy/native/prebuilt/holder-")]
    assert [x for x in names if x.endswith("labextensions/jupyter-singularity/package.json")]
    assert "singularity_scheduler/service/dashboard/static/dashboard.js" in names
    assert not [x for x in names if "/native/build/" in x or "node_modules" in x]


def test_the_module_that_fits_is_taken_without_a_word(prefix: Path) -> None:
    code = "from singularity_proxy import build; print(build.load().__file__)"
    done = subprocess.run(
        [prefix / "bin/python", "-c", code],
        env={**os.environ, **NO_COMPILER},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "native module" not in done.stderr
    assert Path(done.stdout.strip()).parent.name == "prebuilt"
    assert Path(done.stdout.strip()).is_relative_to(prefix)


def test_for_another_torch_it_is_compiled_with_one_sentence(prefix: Path, tmp_path: Path) -> None:
    """Here no compiler works: the sentence, then the one that says what is missing."""
    code = (
        "from singularity_proxy import build; found = build.Torch.find();"
        "build.Torch.find = classmethod(lambda cls: build.Torch(found.folder, 'abc'));"
        "build.main(['--quiet']); build.build(announce=True)"
    )
    variables = {**NO_COMPILER, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [prefix / "bin/python", "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    first, second, *_ = done.stderr.splitlines()
    assert first.startswith("the native module cannot be built: ")
    assert second.startswith("Building the device proxy's native module for this PyTorch: once")


@pytest.mark.asyncio
async def test_it_runs_the_platform(prefix: Path) -> None:
    doctor = json.loads(
        run(prefix / "bin/jupyter", "singularity", "doctor", "--json", **NO_COMPILER)
    )
    [native] = [check for check in doctor["checks"] if check["name"] == "native module"]
    assert native["state"] == "ok"
    proxy = ROOT / "node_modules/.bin" / PROXY_PROGRAM  # from npm, as JupyterHub documents it
    variables = {**NO_COMPILER, "SINGULARITY_HTTP_PROXY": str(proxy)}
    folder = state_folder()
    try:
        port = str(free_ports(1)[0])
        async with up(folder, "--port", port, prefix=prefix, **variables) as running:
            await running.until("ready in")
            password = (folder / "password").read_text().strip()
            with Person(f"http://127.0.0.1:{port}", "alice", password) as alice:
                assert alice.login()
                assert "Devices" in alice.spawn_page()
            code, _, said = await running.end(signal.SIGINT)
        assert (code, said) == (0, "")
    finally:
        shutil.rmtree(folder)
