"""What needs no torch in C++, under the sanitizers: ring, journal, copies, shortened files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import singularity_proxy
from singularity_proxy.wire.ring import RingFile
from support import matrix

pytestmark = pytest.mark.timeout(400)  # all programs are compiled in front of the first test
PACKAGE = Path(singularity_proxy.__file__).parent
HERE = Path(__file__).parent
PROGRAMS = {
    "bulk_copies": (),
    "ring_stress": (),
    "server_stress": ("ring/guard", "recovery/journal", "recovery/files"),
    "exchange_stress": (
        *("ring/guard", "ring/slicer", "recovery/files"),
        *("exchange/exchange_files", "exchange/mirror"),
    ),
    "squash_order": ("ranks/identity",),
}
"""Program -> the sources of the device proxy that it is linked with."""
SANITIZERS = {"thread": "-fsanitize=thread", "memory": "-fsanitize=address,undefined"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Each program once per sanitizer; all are compiled at the same time."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("stress")
    jobs = {}
    for program, sources in PROGRAMS.items():
        for name, option in SANITIZERS.items():
            command = [compiler, "-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", option]
            if name == "memory":
                command.append("-fno-sanitize-recover=all")
            # GCC tells that its thread sanitizer ignores stand-alone fences; the ring uses none.
            target = folder / f"{program}-{name}"
            own = (str(PACKAGE / f"device/src/{source}.cpp") for source in sources)
            command += [f"-I{PACKAGE}", str(HERE / f"{program}.cpp"), *own]
            command += ["-o", str(target), "-pthread"]
            jobs[program, name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for (program, name), job in jobs.items():
        message = job.communicate(timeout=380)[1]
        if "cannot find" in message and "san" in message:
            pytest.skip(f"the {name} sanitizer's runtime library is not installed")
        assert job.returncode == 0, f"{program}: {message}"
    return {key: folder / "-".join(key) for key in jobs}


def run(program: Path, *arguments: object) -> list[str]:
    """What it printed; skips where the sanitizer cannot run at all."""
    done = subprocess.run(
        [program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={
            "TSAN_OPTIONS": "halt_on_error=1",
            "ASAN_OPTIONS": "detect_leaks=0:handle_sigbus=0",
        },
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer cannot run with this kernel's address layout")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.split()


def make(path: Path) -> Path:
    RingFile.create(
        path,
        virtual_device=0,
        device_type="cpu",
        memory_capacity=0,
        request_bytes=16 << 10,
        reply_bytes=4096,
    ).close()
    return path


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("seed", matrix.some_of(range(12), 2))
def test_two_ends_under_stress(
    compiled: dict[tuple[str, str], Path], tmp_path: Path, sanitizer: str, seed: int
) -> None:
    path = make(tmp_path / "stress.ring")
    word, records, wraps = run(compiled["ring_stress", sanitizer], path, seed)
    assert (word, records) == ("ok", "6000")
    assert int(wraps) > 20


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("seed", matrix.some_of(range(12), 2))
def test_all_threads_of_worker_and_proxy_at_once(
    compiled: dict[tuple[str, str], Path], tmp_path: Path, sanitizer: str, seed: int
) -> None:
    for number in range(3):
        make(tmp_path / f"ring{number}.ring")
    answer = run(compiled["server_stress", sanitizer], tmp_path, seed)
    assert answer[0] == "ok"
    records, pauses, copies, hits = map(int, answer[1:])
    assert records == 3 * 3 * 1500
    assert pauses > 0
    assert (copies, hits) == (4 * 60, 30)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("seed", matrix.some_of(range(12), 2))
def test_ranks_that_exchange_through_files_and_bridges_and_are_killed(
    compiled: dict[tuple[str, str], Path], tmp_path: Path, sanitizer: str, seed: int
) -> None:
    answer = run(compiled["exchange_stress", sanitizer], tmp_path, seed)
    word, kills, checked, turns, bridges = answer
    assert (word, checked, turns) == ("ok", str(2 * 3 * 3 * 120), str(3 * 2000))
    assert int(kills) > 3
    assert int(bridges) > 1


def test_long_copies_at_every_place_in_a_line(compiled: dict[tuple[str, str], Path]) -> None:
    """Into memory of exactly that length, by each of the two ways to store."""
    word, copies = run(compiled["bulk_copies", "memory"])
    assert word == "ok"
    assert int(copies) > 2000


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_identities_and_the_order_of_squashing(
    compiled: dict[tuple[str, str], Path], sanitizer: str
) -> None:
    word, checks = run(compiled["squash_order", sanitizer])
    assert word == "ok"
    assert int(checks) > 50_000
