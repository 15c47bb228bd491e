"""torch.compile on the proxied device: the graph is captured in the worker, compiled in the proxy
and called by one record; it survives what its device proxy goes through."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from singularity_proxy.errors import Conflict
from singularity_proxy.standalone import Standalone
from support import matrix

PROGRAMS = Path(__file__).parents[2] / "support" / "compiled_programs.py"

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler"
    ),
]


@contextlib.contextmanager
def paused(session: Standalone, program: str) -> Iterator[subprocess.Popen[str]]:
    """A worker with this program that has stopped in its middle and waits for a line."""
    worker = subprocess.Popen(
        [sys.executable, str(PROGRAMS), program, "cuda"], env=session.env(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "paused\n"
        yield worker
    finally:
        worker.kill()


def kill_proxy(session: Standalone) -> None:
    pid = session.proxy_pids()[0]
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # the session has taken note of its end already
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture(scope="module", autouse=True)
def compiled_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of its own for what the proxies of this module compile, shared by its tests."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def session(compiled_files: Path) -> Iterator[Standalone]:
    with Standalone() as one:
        yield one


def run(session: Standalone, name: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS), name, "cuda"], env=session.env(), capture_output=True,
        text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "torch.compile: a graph" not in done.stderr  # nothing fell back
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def undisturbed(session: Standalone) -> dict[str, object]:
    return run(session, "training")


def test_everyday_uses_give_what_eager_gives(session: Standalone, compiled_files: Path) -> None:
    assert run(session, "features")["passed"] == [
        "fullgraph",
        "autocast",
        "graph_break",
        "automatic_dynamic",
        "dynamic_training",
        "mutation_and_views",
        "method_and_buffer",
        "host_numbers_and_constants",
        "named_backend_and_options",
        "random_numbers_follow_the_seed",
    ]
    made = compiled_files / f"singularity-compiled-{os.getuid()}"
    assert made.stat().st_mode & 0o777 == 0o700
    assert list(made.rglob("*.so"))  # compiled code, not operators
    # Inductor has a folder for these that another user could have prepared.
    assert not list(compiled_files.rglob("precompiled_headers"))


def test_attention_is_compiled_to_the_fused_kernel_of_its_device(
    session: Standalone, compiled_files: Path
) -> None:
    compared = run(session, "attention")["compared"]
    assert isinstance(compared, list)
    assert len(compared) == 3 * 4 + 1
    made = compiled_files / f"singularity-compiled-{os.getuid()}"
    code = [path.read_text() for path in made.rglob("*.py")]
    kernel = "_scaled_dot_product_flash_attention_for_cpu"
    for name in (f"aten.{kernel}.default(", f"aten.{kernel}_backward.default("):
        assert sum(name in text for text in code) >= 3, name  # one per kind of mask


def test_a_call_is_one_record(session: Standalone) -> None:
    assert run(session, "records") == {"async_records": 1, "sync_records": 0}


def test_one_warning_says_why_a_graph_is_not_sent(session: Standalone) -> None:
    answer = run(session, "fallback")
    assert (answer["host"], answer["device"]) == ([2.0] * 3, [2.0] * 3)
    assert answer["said"] == [
        "torch.compile: a graph runs operator by operator, because it returns a tensor on the "
        "host; its results are right"
    ]


@pytest.mark.parametrize("how", ["park", "kill"])
def test_training_goes_on_bitwise_after_its_device_went_away(
    how: str, undisturbed: dict[str, object]
) -> None:
    with Standalone() as session, paused(session, "interrupted") as worker:
        if how == "park":
            session.park()
        else:
            kill_proxy(session)
        session.attach()
        out, _ = worker.communicate("go on\n", timeout=200)
    assert json.loads(out) == undisturbed


@pytest.mark.skipif(not matrix.is_full(), reason="compiles everything three times: with --full")
def test_a_proxy_that_cannot_compile_what_ran_compiled_does_not_take_the_session(
    undisturbed: dict[str, object], tmp_path: Path
) -> None:
    with Standalone() as session, paused(session, "interrupted") as worker:
        session.automatic = False  # it would tell the worker of the first refusal
        session.wait_warm()
        session.proxy_env |= {"PATH": "", "CXX": "", "TMPDIR": str(tmp_path)}  # for later ones
        kill_proxy(session)
        session.attach()
        session.wait_warm()
        kill_proxy(session)
        with pytest.raises(Conflict, match=r"succeeded before and fails here.*was kept"):
            session.attach()
        session.proxy_env.clear()
        for _ in range(3):  # the next one was started before
            kill_proxy(session)
            with contextlib.suppress(Conflict):
                session.attach()
                break
        out, _ = worker.communicate("go on\n", timeout=200)
    assert json.loads(out) == undisturbed


def test_graphs_that_nothing_calls_any_more_are_gone_in_the_proxy_too(tmp_path: Path) -> None:
    def living(where: str) -> int:
        """Graphs in the state of the session's device."""
        folder = tmp_path / where
        folder.mkdir()
        session.checkpoint(str(folder))
        files = [path for path in folder.rglob("*") if path.is_file()]
        return sum(path.read_bytes().count(b"singularity::graph") for path in files)

    with Standalone() as session, paused(session, "freed") as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert living("one") == 1
        kill_proxy(session)
        session.attach()  # from the journal: of all that were made
        assert living("rebuilt") == 1
        worker.stdin.write("go on\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "paused\n"
        assert living("two") == 2
        session.park()
        session.attach()
        out, _ = worker.communicate("go on\n", timeout=200)
    answer = json.loads(out)
    x = torch.arange(1.0, 7.0)
    assert answer["first"] == pytest.approx((x + 1).log().tolist())
    assert answer["second"] == pytest.approx((x * 5).cos().tolist(), abs=1e-5)
