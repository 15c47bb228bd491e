"""How long a new user waits: a clean clone of this checkout, set up in a temporary folder.

`setup_cold_s` is `./dev setup` with empty package caches, `native_cold_s` the native module without
any object, `native_one_file_s` after a change of one source, `wheel_install_s` the wheel with its
extras in an empty environment that has torch, `second_start_s` from `./dev up` until the Hub
answers, when everything is set up. What is fetched comes from this machine's own indexes; nothing
else should run meanwhile. `--quick` uses the packages and objects that the checkout has: no figure
of it says anything about a cold start but `second_start_s`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .figures import Figure

DESCRIPTION = "set-up from a clean clone, native build, wheel, second start"
BOUNDS = {
    "setup_cold_s": 240.0,
    "native_cold_s": 120.0,
    "native_one_file_s": 30.0,
    "wheel_install_s": 60.0,
    "second_start_s": 5.0,
}
ROOT = Path(__file__).resolve().parent.parent
CACHES = ("PIP_CACHE_DIR", "UV_CACHE_DIR", "npm_config_cache")
CHANGED = "proxy/singularity_proxy/device/src/exec/executor.cpp"
START_S = 120.0


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {"clones": 0 if quick else 1, "changed_file": CHANGED, "starts": 1 if quick else 3}


def environment() -> dict[str, str]:
    """This process's environment without the caches and the virtual environment it runs in."""
    own = {name: value for name, value in os.environ.items() if name not in CACHES}
    own.pop("VIRTUAL_ENV", None)
    own.pop("PYTHONPATH", None)
    own["PATH"] = os.pathsep.join(
        folder
        for folder in own.get("PATH", os.defpath).split(os.pathsep)
        if not Path(folder).is_relative_to(ROOT)
    )
    return own


def time_command(command: list[str | Path], folder: Path, **more: str) -> float:
    """Seconds that `command` takes. Raises RuntimeError with the end of its output."""
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=environment() | more, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
    return time.monotonic() - began


def clone_checkout(folder: Path) -> None:
    """The files of this checkout that git knows, as they are now."""
    names = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT
    )
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def time_native(clone: Path) -> tuple[float, float]:
    """Seconds of the native module from nothing, and after a change of one file."""
    python = clone / ".venv/bin/python"
    build: list[str | Path] = [python, "-m", "singularity_proxy.build", "--quiet"]
    cold = time_command([*build, "--force"], clone)
    with (clone / CHANGED).open("a") as source:
        source.write("\nnamespace singularity {\nint changed_by_benchmark() { return 1; }\n}\n")
    return cold, time_command(build, clone)


def time_wheel(clone: Path, folder: Path) -> float:
    """Seconds of installing the clone's wheel with `[hub]` beside torch."""
    time_command([clone / "dev", "wheel"], clone)
    wheel = max((clone / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    time_command([sys.executable, "-m", "venv", folder], clone)
    pip = folder / "bin/pip"
    torch = (clone / ".dev/stamps/torch").read_text().strip()
    time_command([pip, "install", "--quiet", torch], clone)
    return time_command(
        [
            pip,
            "install",
            "--quiet",
            "-c",
            clone / "requirements/platform.lock",
            f"{wheel}[hub,kernel]",
        ],
        clone,
    )


def time_start(checkout: Path, state: Path) -> float:
    """Seconds from `./dev up` to the Hub's first answer; stopped again after."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = time.monotonic()
    with (state / "up.log").open("w") as log:
        up = subprocess.Popen(
            [checkout / "dev", "up", "--port", str(port), "--state", state / "platform"],
            cwd=checkout,
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            while time.monotonic() < began + START_S and up.poll() is None:
                with (
                    suppress(OSError),
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/hub/health"),
                ):
                    return time.monotonic() - began
                time.sleep(0.02)
            raise RuntimeError(f"./dev up did not start: {(state / 'up.log').read_text()[-2000:]}")
        finally:
            up.send_signal(signal.SIGINT)
            try:
                up.wait(60)
            except subprocess.TimeoutExpired:
                up.kill()
                up.wait()


def measure_all(quick: bool, say: Callable[[str], None]) -> dict[str, Figure]:
    figures = {name: Figure(note="not measured by --quick") for name in BOUNDS}

    def keep(name: str, values: list[float]) -> None:
        figures[name] = Figure(values)
        say(f"{name}: {', '.join(f'{value:.1f}' for value in values)}")

    with tempfile.TemporaryDirectory(prefix="singularity-setup-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)  # sessions of other users read the environment
        checkout, starts = ROOT, sizes(quick)["starts"]
        if not quick:
            checkout = folder / "clone"
            checkout.mkdir()
            clone_checkout(checkout)
            keep("setup_cold_s", [time_command([checkout / "dev", "setup"], checkout)])
            keep("wheel_install_s", [time_wheel(checkout, folder / "environment")])
            time_start(checkout, folder)
        keep("second_start_s", [time_start(checkout, folder) for _ in range(starts)])
        if not quick:
            cold, one = time_native(checkout)
            keep("native_cold_s", [cold])
            keep("native_one_file_s", [one])
    return figures


async def measure(quick: bool, say: Callable[[str], None]) -> dict[str, Figure]:
    """See the module's description."""
    return await asyncio.to_thread(measure_all, quick, say)
