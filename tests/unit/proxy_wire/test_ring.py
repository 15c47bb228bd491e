"""The ring in C++ under the sanitizers, without torch: order, wrap-around, sleep, re-attach."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import singularity_proxy
from singularity_proxy.wire.ring import RingFile
from support import matrix

PACKAGE = Path(singularity_proxy.__file__).parent
SOURCE = Path(__file__).parent / "ring_stress.cpp"
SANITIZERS = {"thread": "-fsanitize=thread", "memory": "-fsanitize=address,undefined"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The stress program once per sanitizer; both are compiled at the same time."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("stress")
    jobs = {}
    for name, option in SANITIZERS.items():
        command = [compiler, "-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", option]
        if name == "memory":
            command.append("-fno-sanitize-recover=all")
        # GCC tells that its thread sanitizer ignores stand-alone fences; the ring uses none.
        command += [f"-I{PACKAGE}", str(SOURCE), "-o", str(folder / name), "-pthread"]
        jobs[name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    messages = {name: job.communicate(timeout=110)[1] for name, job in jobs.items()}
    for name, message in messages.items():
        if "cannot find" in message and ("san" in message):
            pytest.skip(f"the {name} sanitizer's runtime library is not installed")
        assert jobs[name].returncode == 0, message
    return {name: folder / name for name in SANITIZERS}


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("seed", matrix.some_of(range(12), 2))
def test_two_ends_under_stress(
    compiled: dict[str, Path], tmp_path: Path, sanitizer: str, seed: int
) -> None:
    path = tmp_path / "stress.ring"
    RingFile.create(
        path,
        virtual_device=0,
        device_type="cpu",
        memory_capacity=0,
        request_bytes=16 << 10,
        reply_bytes=4096,
    ).close()
    done = subprocess.run(
        [compiled[sanitizer], path, str(seed)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={"TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0"},
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer cannot run with this kernel's address layout")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    word, records, wraps = done.stdout.split()
    assert (word, records) == ("ok", "6000")
    assert int(wraps) > 20
