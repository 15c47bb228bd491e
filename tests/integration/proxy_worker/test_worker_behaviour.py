"""What user code meets in a session's process, beyond the values of operators."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.standalone import Standalone
from support.kernel_relay import wait_until
from support.processes import stop_process


@pytest.fixture
def session() -> Iterator[Standalone]:
    with Standalone(capacity_bytes=1 << 30) as one:
        yield one


def run(session: Standalone, code: str, timeout: float = 60) -> str:
    """Standard output of `code` in a worker; its errors are shown when it fails."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=session.env(), capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_outside_of_a_session_nothing_changes() -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("SINGULARITY_")}
    code = """
    import sys
    assert "singularity_proxy" not in sys.modules
    import torch
    print(torch.cuda.is_available(), torch.version.cuda, "singularity_proxy" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[0] == "False"
    assert done.stdout.split()[2] == "False"


def test_the_hook_alone_does_not_import_torch(session: Standalone) -> None:
    out = run(
        session,
        "import sys; print('singularity_proxy.worker.hook' in sys.modules, 'torch' in sys.modules)",
    )
    assert out.split() == ["True", "False"]


def test_code_that_only_asks_takes_no_device(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        torch.manual_seed(3)
        x = torch.randn(100, 100) @ torch.randn(100, 100)
        print(torch.cuda.is_available(), torch.cuda.device_count())
        print(torch.cuda.get_device_properties(0).total_memory >> 20, torch.cuda.mem_get_info())
        torch.cuda.manual_seed_all(4)
        torch.cuda.synchronize()
        """,
    )
    assert out.split()[:3] == ["True", "1", "1024"]
    assert session.doorbell_rings == 0
    assert session.proxy_pids() == []


def test_seeds_given_without_a_device_hold(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        torch.manual_seed(3)
        a = torch.rand(3, device="cuda").cpu()
        torch.manual_seed(3)
        print(torch.equal(a, torch.rand(3)))
        """,
    )
    assert out.split() == ["True"]


def test_the_first_call_waits_for_an_agent_that_restarts(session: Standalone) -> None:
    hidden = session.folder / "away.sock"
    (session.folder / "agent.sock").rename(hidden)
    code = "import torch; print('asking', flush=True); print(torch.ones(2, device='cuda').tolist())"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=session.env(), stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "asking\n"
        time.sleep(1)  # the call is being tried
        assert worker.poll() is None
        hidden.rename(session.folder / "agent.sock")
        assert worker.stdout.readline() == "[1.0, 1.0]\n"
        assert worker.wait(30) == 0


def test_a_waiting_call_can_be_interrupted_and_repeated(session: Standalone) -> None:
    session.automatic = False
    code = """
    import torch
    print("asking", flush=True)
    try:
        torch.ones(2, device="cuda")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print((torch.ones(2, device="cuda") + 1).tolist(), flush=True)
    """
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=session.env(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "asking\n"
        while not session.doorbell_rings:
            time.sleep(0.02)
        assert session.rings()[0].read().worker_waiting
        worker.send_signal(signal.SIGINT)
        assert worker.stdout.readline() == "interrupted\n"
        session.attach()
        assert worker.stdout.readline() == "[2.0, 2.0]\n"
        assert worker.wait(20) == 0
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def test_a_long_wait_says_why_once_when_nobody_else_can(session: Standalone) -> None:
    """Two processes wait: for a device that others have, which is no news, and for an agent that is
    gone."""
    session.automatic = False
    code = """
    import sys, torch
    print("asking", flush=True)
    for call in range(2):
        try:
            torch.ones(2, device="cuda")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    nobody = str(session.folder / "nobody-listens-here")
    env = session.env()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=env | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for more in ({}, {"SINGULARITY_DOORBELL": nobody})
    ]
    try:
        alone = workers[1].stderr
        assert alone is not None
        assert alone.readline() == (
            "waiting for the device: the node agent does not answer; nothing is lost, it goes on "
            "when the agent is back. The code goes on by itself; interrupt it to stop waiting.\n"
        )
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "asking\n"
        wait_until(lambda: sum(ring.read().worker_waiting for ring in session.rings()) == 2)
        for worker in workers:
            assert worker.stdout is not None
            for _ in range(2):  # a second, short wait says nothing
                time.sleep(0.3)
                worker.send_signal(signal.SIGINT)
                assert worker.stdout.readline() == "interrupted\n"
            _, rest = worker.communicate(timeout=30)
            assert (worker.returncode, rest) == (0, "")
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


@pytest.mark.parametrize("run", [False, True], ids=["notebook", "run"])
def test_a_device_proxy_that_does_not_answer_is_named(
    session: Standalone, tmp_path: Path, run: bool
) -> None:
    """Beneath the cell of a notebook; in the log of a run, whose output shows nothing of it."""
    log = tmp_path / "capsule.log"
    log.touch()
    code = """
    import torch
    x = torch.ones(2, device="cuda")
    print(x.tolist(), flush=True)
    input()
    print((x + 1).tolist(), flush=True)
    """
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**session.env(), **({"SINGULARITY_LOG": str(log)} if run else {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        assert worker.stdout.readline() == "[1.0, 1.0]\n"
        (proxy,) = session.proxy_pids()
        stop_process(proxy)
        worker.stdin.write("\n")
        worker.stdin.flush()
        sentence = (
            "waiting for the device: its device proxy does not answer; nothing is lost, it is "
            "replaced by the node agent. The code goes on by itself; interrupt it to stop "
            "waiting.\n"
        )
        if run:
            while not log.read_text():
                time.sleep(0.1)
            assert log.read_text() == sentence
        else:
            assert worker.stderr.readline() == sentence
        os.kill(proxy, signal.SIGCONT)
        out, rest = worker.communicate(timeout=30)
        assert (worker.returncode, out, rest) == (0, "[2.0, 2.0]\n", "")
    finally:
        worker.kill()
        worker.communicate()


def test_an_interrupted_reply_does_not_disturb_later_ones(session: Standalone) -> None:
    code = """
    import signal, torch
    x = torch.randn(1500, 1500, device="cuda")
    def alarm(*_): raise TimeoutError("late")
    signal.signal(signal.SIGALRM, alarm)
    late = 0
    for i in range(20):
        signal.setitimer(signal.ITIMER_REAL, 0.03)
        try:
            for _ in range(3): x @ x
            (x @ x).sum().item()
        except TimeoutError:
            late += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    torch.cuda.synchronize()
    print(late > 0, (torch.arange(4, device="cuda") * 2).tolist())
    """
    assert run(session, code) == "True [0, 2, 4, 6]\n"


def test_out_of_memory_is_raised_where_it_happens_and_survived(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        keep = torch.ones(1 << 20, device="cuda")
        try:
            torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print("empty:", str(error).split(".")[0])
        parts = []
        try:
            while True:
                parts.append(keep.repeat(32))
        except torch.cuda.OutOfMemoryError as error:
            print("op:", str(error).split(".")[0], len(parts))
        parts.clear()
        print(int(keep.repeat(32).sum().item()) == 32 << 20)
        """,
    )
    lines = out.splitlines()
    assert lines[0] == "empty: CUDA out of memory"
    assert lines[1].startswith("op: CUDA out of memory")
    assert 5 <= int(lines[1].split()[-1]) <= 8
    assert lines[2] == "True"


def test_late_errors_name_the_operator(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        table = torch.nn.Embedding(10, 4).cuda()
        table(torch.tensor([1], device="cuda")); table(torch.tensor([2], device="cuda"))
        try:
            table(torch.tensor([99], device="cuda")); torch.cuda.synchronize()
        except (RuntimeError, IndexError) as error:
            print(str(error).replace(chr(10), " "))
        print(torch.ones(2, device="cuda").sum().item())
        """,
    )
    assert "embedding" in out.splitlines()[0]
    assert "CUDA_LAUNCH_BLOCKING=1" in out.splitlines()[0]
    assert out.splitlines()[1] == "2.0"


def test_several_virtual_devices() -> None:
    with Standalone(devices=2) as session:
        out = run(
            session,
            """
            import torch
            a, b = torch.ones(3, device="cuda:0"), torch.full((3,), 2.0, device="cuda:1")
            print(torch.cuda.device_count(), a.device, b.device)
            try:
                a + b
            except RuntimeError as error:
                print("same device" in str(error))
            print((a + b.to("cuda:0")).tolist(), (a.to("cuda:1") * b).device)
            with torch.cuda.device(1):
                print(torch.zeros(1, device="cuda").device, torch.cuda.current_device())
            try:
                torch.zeros(1, device="cuda:2")
            except RuntimeError as error:
                print("invalid device ordinal" in str(error))
            """,
        )
        assert len(session.proxy_pids()) == 2
    assert out.splitlines() == [
        "2 cuda:0 cuda:1",
        "True",
        "[3.0, 3.0, 3.0] cuda:1",
        "cuda:1 1",
        "True",
    ]


def test_two_processes_of_one_session_share_its_proxy(session: Standalone) -> None:
    out = run(
        session,
        """
        import subprocess, sys, torch
        x = torch.full((4,), 3.0, device="cuda")
        code = "import torch; print(torch.ones(3, device='cuda').sum().item())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        print(done.stdout.strip())
        print(x.sum().item())
        """,
    )
    assert out.split() == ["3.0", "12.0"]
    assert len(session.proxy_pids()) == 1


def test_what_cannot_work_is_refused_with_a_sentence(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        x = torch.ones(3, device="cuda")
        def said(f):
            try:
                f()
            except Exception as error:
                print(type(error).__name__, str(error).replace(chr(10), ' '))
        said(lambda: x.__cuda_array_interface__)
        said(lambda: torch.utils.dlpack.to_dlpack(x))
        said(lambda: torch.cuda.CUDAGraph())
        said(lambda: x.untyped_storage()._share_cuda_())
        said(lambda: torch.cuda.nccl.all_reduce([x]))
        print(x.sum().item())
        """,
        timeout=100,
    )
    lines = out.splitlines()
    assert len(lines) == 6, out
    for line, do in zip(
        lines, (".cpu()", ".cpu()", "eagerly", ".cpu()", "torch.cuda.comm"), strict=False
    ):
        assert do in line, line
    assert lines[-1] == "3.0"


def test_the_libraries_that_need_a_device_are_refused_after_their_import(
    session: Standalone, tmp_path
) -> None:
    # A library of that name with one kernel, as the real one would be: only its import is watched.
    package = tmp_path / "triton" / "runtime"
    package.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "jit.py").write_text("class JITFunction:\n    def run(self): return 'ran'\n")
    out = run(
        session,
        f"""
        import sys; sys.path.insert(0, {str(tmp_path)!r})
        from triton.runtime.jit import JITFunction
        try:
            JITFunction().run()
        except RuntimeError as error:
            print(error)
        """,
    )
    assert "Triton" in out
    assert "use torch operators" in out


def test_forked_children_are_told_to_spawn(session: Standalone) -> None:
    out = run(
        session,
        """
        import os, torch
        def child(what):
            sys_pid = os.fork()
            if sys_pid == 0:
                try:
                    print(what, torch.ones(2, device="cuda").sum().item(), flush=True)
                except RuntimeError as error:
                    print(what, str(error)[:34], flush=True)
                os._exit(0)
            os.waitpid(sys_pid, 0)
        child("before")
        torch.ones(1, device="cuda")
        child("after")
        print(torch.ones(3, device="cuda").sum().item())
        """,
    )
    assert out.splitlines() == ["before 2.0", "after Cannot re-initialize CUDA in forke", "3.0"]


def test_a_result_is_never_lost_in_a_host_number(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        x, total = torch.full((), 3.0, device="cuda"), torch.zeros(())
        for write in (lambda: total.add_(x), lambda: torch.add(x, 1, out=total)):
            try:
                write()
            except RuntimeError as error:
                print("same device" in str(error), total.item())
        x += torch.ones(())
        print(x.item())
        """,
    )
    assert out.splitlines() == ["True 0.0", "True 0.0", "4.0"]


def test_factories_follow_the_default_dtype(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        def made(**kw):
            return [t.dtype for t in (
                torch.zeros(2, **kw), torch.rand(2, **kw), torch.full((2,), 1.5, **kw),
                torch.full((2,), 1, **kw), torch.full((2,), True, **kw), torch.arange(3, **kw),
                torch.arange(0, 1, 0.5, **kw), torch.linspace(0, 1, 3, **kw), torch.eye(2, **kw),
                torch.randperm(3, **kw), torch.randint(3, (2,), **kw), torch.full((2,), 1j, **kw),
                torch.hann_window(3, **kw), torch.zeros(2, dtype=torch.half, **kw),
                torch.zeros_like(torch.ones(2, dtype=torch.float32, **kw)),
            )]
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            print(made(device="cuda") == made())
        """,
    )
    assert out.split() == ["True"] * 3


def test_out_of_memory_of_a_large_known_result_is_raised_where_it_happens(
    session: Standalone,
) -> None:
    out = run(
        session,
        """
        import torch
        x, parts = torch.ones(70 << 20, device="cuda"), []
        x * 2  # now its result's size is known
        torch.cuda.synchronize()
        try:
            for _ in range(4):
                parts.append(x * 2)
        except torch.OutOfMemoryError as error:
            print(len(parts), "earlier" in str(error))
        torch.cuda.synchronize()
        print(sum(int(p[0].item()) for p in parts))
        """,
    )
    assert out.splitlines() == ["2 False", "4"]


def test_a_failed_decomposition_is_raised_at_its_own_line(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        x = torch.eye(4, device="cuda")
        torch.linalg.svd(x)
        x[0, 0] = float("nan")
        try:
            torch.linalg.svd(x)
        except torch.linalg.LinAlgError:
            print("caught")
        torch.cuda.synchronize()
        """,
    )
    assert out.split() == ["caught"]


def test_a_storage_can_be_made_smaller_and_larger(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        x = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
        torch.cuda.synchronize()  # figures of memory follow what the proxy has executed
        storage, before = x.untyped_storage(), torch.cuda.memory_allocated()
        storage.resize_(8)
        torch.cuda.synchronize()
        print(storage.nbytes(), before - torch.cuda.memory_allocated() > 4 << 19)
        storage.resize_(4 << 20)
        print(storage.nbytes(), x[:2].tolist())
        """,
    )
    assert out.splitlines() == ["8 True", f"{4 << 20} [0.0, 1.0]"]


def test_quantized_tensors_are_refused(session: Standalone) -> None:
    out = run(
        session,
        """
        import warnings; warnings.simplefilter("ignore")
        import torch
        x = torch.ones(2, device="cuda")
        try:
            torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
        except NotImplementedError as error:
            print("on the host" in str(error), (x + 1).tolist())
        """,
    )
    assert out.splitlines() == ["True [2.0, 2.0]"]


def test_one_element_of_any_shape_is_a_number(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        x = torch.arange(6.0, device="cuda")
        print(x[1:2].item(), x[2:3].view(1, 1).item(), float(x[3:4]), bool(x[:1]))
        print(torch.empty(0, device="cuda").set_(x.untyped_storage(), 0, (8,)).fill_(1).tolist())
        """,
    )
    assert out.splitlines() == ["1.0 2.0 3.0 False", str([1.0] * 8)]


def test_a_ring_that_has_failed_takes_no_other_process_along(session: Standalone) -> None:
    code = """
    import sys, torch
    print(torch.ones(2, device="cuda").tolist(), flush=True)
    sys.stdin.readline()
    print((torch.ones(2, device="cuda") + 1).tolist(), flush=True)
    """
    workers = []
    try:
        for _ in range(2):
            worker = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(code)], env=session.env(), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            workers.append(worker)
            assert worker.stdout is not None
            assert worker.stdout.readline() == "[1.0, 1.0]\n"
        session.rings()[0].fail("it has come to its end")
        (pid,) = session.proxy_pids()
        os.kill(pid, signal.SIGKILL)
        _, why = workers[0].communicate("go on\n", timeout=60)
        assert why.rstrip().endswith("RuntimeError: it has come to its end")
        out, errors = workers[1].communicate("go on\n", timeout=60)
        assert out == "[2.0, 2.0]\n", errors
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
