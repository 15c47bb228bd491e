"""Several virtual devices in one process."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from singularity_proxy.standalone import Standalone


@pytest.fixture(scope="module")
def session() -> Iterator[Standalone]:
    with Standalone(devices=2, capacity_bytes=1 << 30) as one:
        yield one


def run(session: Standalone, code: str, more: dict[str, str] | None = None) -> list[str]:
    """The lines that `code` prints in a process of the session, with `more` in its environment."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={**session.env(), **(more or {})},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_copies_between_devices_keep_everything(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        for make in (
            lambda: torch.randn(4, 6, device="cuda:0")[:, ::2].t(),
            lambda: torch.randn(2, 3, 4, 4, device="cuda:0").to(memory_format=torch.channels_last),
            lambda: torch.randn(5, device="cuda:0", dtype=torch.complex64).conj(),
            lambda: torch.arange(7, device="cuda:0").to(torch.bfloat16),
            lambda: torch.tensor(3, device="cuda:0") > 2,
            lambda: torch.empty(0, 3, device="cuda:0"),
        ):
            a = make()
            b = a.to("cuda:1")
            native = a.cpu().to("cpu", copy=True)
            print(b.device.index, b.dtype == a.dtype, b.stride() == native.stride(),
                  torch.equal(a.cpu(), b.cpu()))
            c = torch.empty_like(a, device="cuda:1")
            print(torch.equal(c.copy_(a, non_blocking=True).cpu(), a.cpu()))
        x = torch.ones(3, device="cuda:0", requires_grad=True)
        ((x * 2).to("cuda:1") * torch.arange(3, device="cuda:1")).sum().backward()
        print(x.grad.tolist(), x.grad.device)
        """,
    )
    assert out[:-1] == ["1 True True True", "True"] * 6
    assert out[-1] == "[0.0, 2.0, 4.0] cuda:0"


def test_each_device_has_its_own_numbers(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        a = torch.ones(1 << 20, device="cuda:1")
        print(*(torch.cuda.memory_allocated(which) for which in (0, 1, "cuda:1")))
        with torch.cuda.device(1):
            print(torch.cuda.memory_allocated(), torch.cuda.current_device())
            torch.cuda.reset_peak_memory_stats()
        with torch.cuda.device_of(a):
            print(torch.zeros(1, device="cuda").device)
        torch.cuda.manual_seed_all(3)
        states = torch.cuda.get_rng_state_all()
        x, y = torch.rand(3, device="cuda:0"), torch.rand(3, device="cuda:1")
        print(len(states), torch.equal(x.cpu(), y.cpu()))
        torch.cuda.set_rng_state(states[1], 1)
        print(torch.equal(torch.rand(3, device="cuda:1"), y))
        print(torch.equal(torch.rand(3, device="cuda:0").cpu(), y.cpu()))
        with torch.random.fork_rng(devices=[0, 1]):
            torch.rand(5, device="cuda:1")
        g = torch.Generator("cuda:1").manual_seed(1)
        print(g.device, torch.rand(1, device="cuda:1", generator=g).device)
        torch.accelerator.set_device_index(1)
        print(torch.cuda.current_device(), torch.accelerator.current_device_index())
        """,
    )
    four = str(4 << 20)
    assert out == [
        f"0 {four} {four}",
        f"{four} 1",
        "cuda:1",
        "2 True",
        "True",
        "False",
        "cuda:1 cuda:1",
        "1 1",
    ]


def test_streams_events_and_waits_between_devices(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        s0, s1 = torch.cuda.Stream(0), torch.cuda.Stream("cuda:1")
        print(s0.device, s1.device)
        with torch.cuda.stream(s1):
            print(torch.cuda.current_device(), torch.cuda.current_stream(1) == s1)
            y = torch.ones(2, device="cuda") * 3
            event = s1.record_event()
        print(torch.cuda.current_device(), y.device)
        s0.wait_event(event)
        with torch.cuda.stream(s0):
            z = y.to("cuda:0", non_blocking=True) + 1
        torch.cuda.synchronize(0); torch.cuda.synchronize("cuda:1")
        print(z.tolist(), event.query())
        a = torch.cuda.Event(enable_timing=True); a.record(s0)
        b = torch.cuda.Event(enable_timing=True); b.record(s1)
        try:
            a.elapsed_time(b)
        except (ValueError, RuntimeError) as error:
            print("same device" in str(error))
        """,
    )
    assert out == ["cuda:0 cuda:1", "1 True", "0 cuda:1", "[4.0, 4.0] True", "True"]


def test_data_parallel_and_comm_on_two_devices(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        from torch import nn
        from torch.cuda import comm
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        x = torch.randn(6, 3)
        model(x).square().sum().backward()
        grads = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        parallel = nn.DataParallel(model.cuda(), device_ids=[0, 1])
        parallel(x.cuda()).square().sum().backward()
        pairs = zip(model.parameters(), grads)
        print(all(torch.allclose(p.grad.cpu(), g, atol=1e-5) for p, g in pairs))
        parts = comm.scatter(x, [0, 1])
        back = comm.gather(parts, destination=1).cpu()
        print([str(p.device) for p in parts], torch.equal(back, x))
        copies = comm.broadcast_coalesced([x.cuda(), x.cuda() * 2], [0, 1])
        print(torch.equal(comm.reduce_add([c[1] for c in copies]).cpu(), x * 4))
        print(torch.cuda.can_device_access_peer(0, 1))
        from torch.cuda import nccl
        try:
            nccl.all_reduce([x.cuda()])
        except RuntimeError as error:
            print(error)
        """,
    )
    assert out == [
        "True", "['cuda:0', 'cuda:1'] True", "True", "True",
        "torch.cuda.nccl.all_reduce is not supported on a proxied device: use torch.cuda.comm",
    ]  # fmt: skip


def test_saved_tensors_go_back_to_their_device(session: Standalone) -> None:
    out = run(
        session,
        """
        import copy, io, pickle, torch
        x = torch.arange(4.0, device="cuda:1")
        b = io.BytesIO(); torch.save({"x": x}, b)
        def load(**kw):
            b.seek(0)
            return str(torch.load(b, **kw)["x"].device)
        print(load(), load(map_location="cuda:0"), load(map_location={"cuda:1": "cuda:0"}),
              load(map_location="cpu"), load(map_location=lambda s, where: s.cuda(0)))
        print(pickle.loads(pickle.dumps(x)).device, copy.deepcopy(x).device)
        """,
    )
    assert out == ["cuda:1 cuda:0 cuda:0 cpu cuda:0", "cuda:1 cuda:1"]


CHOICES = {
    None: [0, 1],
    "1": [1],
    "0": [0],
    "1,0": [1, 0],
    " 0 , 1 ": [0, 1],
    "1x": [1],
    "0,5,1": [0],
    "-1": [],
    "": [],
    "none": [],
    "1,1": [],
}
"""CUDA_VISIBLE_DEVICES -> the session's devices that a program sees as cuda:0, cuda:1, ..."""


@pytest.mark.parametrize("chosen", CHOICES)
def test_a_program_sees_the_devices_that_it_has_chosen(
    session: Standalone, chosen: str | None
) -> None:
    out = run(
        session,
        """
        import torch
        everyones = {UUIDS!r}
        found = [
            everyones.index(str(torch.cuda.get_device_properties(i).uuid))
            for i in range(torch.cuda.device_count())
        ]
        print(found, torch.cuda.is_available() == bool(found))
        try:
            print(torch.ones(1, device=f"cuda:{max(len(found) - 1, 0)}").sum().item())
        except RuntimeError as error:
            print(error)
        """.replace("{UUIDS!r}", repr(uuids(session))),
        {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen},
    )
    wanted = CHOICES[chosen]
    assert out[0] == f"{wanted} True"
    assert out[1] == ("1.0" if wanted else "No CUDA GPUs are available")


def uuids(session: Standalone) -> list[str]:
    """The UUIDs of all devices of the session, as its programs are told them."""
    code = "import torch; print(*(torch.cuda.get_device_properties(i).uuid for i in range(2)))"
    return run(session, code)[0].split()


def test_a_device_is_chosen_by_its_uuid_too(session: Standalone) -> None:
    second = uuids(session)[1]
    code = "from torch import cuda; print(cuda.device_count(), cuda.get_device_properties(0).uuid)"
    for name in (f"GPU-{second}", f"GPU-{second[:-8]}"):
        assert run(session, code, {"CUDA_VISIBLE_DEVICES": name}) == [f"1 {second}"]
    both = {"CUDA_VISIBLE_DEVICES": "GPU-" + uuids(session)[0][:8]}
    assert run(session, "import torch; print(torch.cuda.device_count())", both) == ["0"]


def test_a_choice_counts_until_a_device_is_used(session: Standalone) -> None:
    out = run(
        session,
        """
        import os, torch
        print(torch.cuda.device_count())
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        print(torch.cuda.device_count())
        x = torch.ones(2, device="cuda")
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
        print(torch.cuda.device_count(), x.device)
        """,
    )
    assert out == ["2", "1", "1 cuda:0"]


def test_two_programs_with_a_device_each_use_different_ones(session: Standalone) -> None:
    code = """
        import torch
        x = torch.ones(1 << 20, device="cuda")
        print(torch.cuda.memory_allocated() >= 4 << 20, torch.cuda.get_device_properties(0).uuid)
        """
    found = [run(session, code, {"CUDA_VISIBLE_DEVICES": one})[0].split() for one in "01"]
    assert [there for there, _ in found] == ["True", "True"]
    assert [uuid for _, uuid in found] == uuids(session)


def test_error_codes_properties_and_registered_memory_are_as_in_cuda(session: Standalone) -> None:
    out = run(
        session,
        """
        import torch
        torch.cuda.check_error(torch.cuda.cudart().cudaError.success)
        try:
            torch.cuda.check_error(2)
        except torch.cuda.CudaError as error:
            print(error)
        first, again = (torch.cuda.get_device_properties(0) for _ in range(2))
        print(first == again, first == torch.cuda.get_device_properties(1), len({first, again}))
        x, runtime = torch.zeros(1000), torch.cuda.cudart()
        torch.cuda.check_error(runtime.cudaHostRegister(x.data_ptr(), x.nbytes, 0))
        print(x.is_pinned(), x[500:].is_pinned(), torch.zeros(1000).is_pinned())
        print(int(runtime.cudaHostRegister(x.data_ptr() + 8, 8, 0)))
        torch.cuda.check_error(runtime.cudaHostUnregister(x.data_ptr()))
        print(x.is_pinned(), int(runtime.cudaHostUnregister(x.data_ptr())))
        """,
    )
    assert out == ["out of memory (2)", "True False 1", "True True False", "712", "False 713"]
