"""Device tensors on their way to other processes of a session: copies, or an error."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from singularity_proxy.standalone import Standalone


@pytest.fixture(scope="module")
def session() -> Iterator[Standalone]:
    with Standalone(devices=2, capacity_bytes=1 << 28) as one:
        yield one


COWARDLY = "SharingRefused: Cowardly refusing to serialize non-leaf tensor which requires_grad"
HELPERS = """
import sys, warnings
import torch, torch.multiprocessing as mp
SPAWN = mp.get_context("spawn")
class Own:
    def __init__(self, inside):
        self.inside = inside
def told(call):
    try:
        print("no error", call(), flush=True)
    except Exception as error:
        print(type(error).__name__ + ":", *str(error).split(",")[0].splitlines()[:1], flush=True)
def main():
    x, big = torch.ones(2, device="cuda"), torch.arange(100_000., device="cuda")
"""


def run(session: Standalone, name: str, functions: str, code: str) -> tuple[list[str], str]:
    """The lines that the body `code` of a program prints, and what it says on stderr."""
    place = session.folder / f"{name}.py"
    body = textwrap.indent(textwrap.dedent(code), "    ")
    start = 'if __name__ == "__main__":\n    main()\n'
    place.write_text(textwrap.dedent(functions) + HELPERS + body + start)
    done = subprocess.run(
        [sys.executable, str(place)],
        env=session.env(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_a_queue_brings_copies(session: Standalone) -> None:
    out, said = run(
        session,
        "copies",
        "",
        """
        for queue in (SPAWN.Queue(), SPAWN.JoinableQueue(), SPAWN.SimpleQueue()):
            queue.put({"x": [x, x[1:]], "big": (big, big[10:20])})
            x.fill_(3)  # too late for what was put
            got = queue.get()
            part, (whole, ten) = got["x"][1], got["big"]
            print(got["x"][0].tolist(), whole.device, torch.equal(whole, big), ten[0].item())
            got["x"][0][1], whole[10] = 7, -1
            print(part.tolist(), ten[0].item(), x.tolist(), big[10].item())
            x.fill_(1)
        sparse = torch.eye(3, device="cuda:1").to_sparse()
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]).cuda()
        sent = [
            sparse, sparse.to_dense().to_sparse_csr(), nested, torch.empty(0, 3, device="cuda"),
            torch.nn.Parameter(x), x.half(), x.to(torch.complex64), big[:6].view(2, 3).t(), x > 0,
            x.cpu(), x.untyped_storage(),
        ]
        queue = SPAWN.Queue(1)
        queue.put(sent)
        told(lambda: queue.put(big, timeout=0.05))
        for one, other in zip(sent, queue.get(timeout=60)):
            if isinstance(one, torch.UntypedStorage):
                print("storage", one.device == other.device, one.tolist() == other.tolist())
                continue
            same = all(getattr(one, name) == getattr(other, name)
                       for name in ("device", "dtype", "layout", "requires_grad", "is_nested"))
            strides = one.layout is not torch.strided or one.is_nested or \\
                one.stride() == other.stride()
            pair = [v.to_padded_tensor(0) if v.is_nested else v.to_dense() for v in (one, other)]
            print(same, strides, type(one) is type(other), torch.equal(*pair))
        linear = torch.nn.Linear(2, 2, device="cuda")
        for message in (linear, Own(linear)):
            queue.put(message)
            got = queue.get(timeout=60)
            got = getattr(got, "inside", got)
            print(torch.equal(got.weight, linear.weight), got.weight.requires_grad)
        """,
    )
    copied = ["[1.0, 1.0] cuda:0 True 10.0", "[7.0] -1.0 [3.0, 3.0] 10.0"]
    assert out[:6] == copied * 3
    assert out[6] == "Full:"
    assert out[7:] == [*["True True True True"] * 10, "storage True True", *["True True"] * 2]
    assert said.count("arrive in another process of the session as copies") == 1
    assert "queue.put({" in said  # the line that sent one first


def test_processes_and_executors_bring_device_tensors(session: Standalone) -> None:
    out, _ = run(
        session,
        "processes",
        """
        from concurrent.futures import ProcessPoolExecutor
        def double(queue, answers, known):
            answers.put([2 * queue.get(timeout=60), known.sum()])  # and ends
        def twice(x):
            return 2 * x
        """,
        """
        queue, answers = SPAWN.Queue(), SPAWN.Queue()
        other = SPAWN.Process(target=double, args=(queue, answers, big))
        other.start()
        queue.put(x)
        other.join(60)
        print([t.sum().item() for t in answers.get(timeout=60)])
        with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
            print(pool.submit(twice, big).result(60)[-1].item())
            told(lambda: pool.submit(twice, x.requires_grad_() * 2).result(60))
            print(pool.submit(twice, 2).result(60))
        """,
    )
    assert out == ["[4.0, 4999949824.0]", "199998.0", COWARDLY, "4"]


def test_workers_of_a_loader_bring_device_tensors(session: Standalone) -> None:
    out, _ = run(
        session,
        "loaders",
        """
        import torch
        class Items(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return torch.full((3,), float(i), device="cuda")
        class Wrong(Items):
            def __getitem__(self, i): return torch.ones(3, device="cuda", requires_grad=True) * i
        """,
        """
        def loader(items, size):
            return torch.utils.data.DataLoader(
                items, batch_size=size, num_workers=1, multiprocessing_context="spawn")
        print([batch[:, 0].tolist() for batch in loader(Items(), 4)])
        told(lambda: next(iter(loader(Wrong(), None))))
        """,
    )
    assert out == ["[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]", COWARDLY]


def test_what_cannot_travel_is_refused_in_the_caller_or_the_reader(session: Standalone) -> None:
    out, _ = run(
        session,
        "refused",
        """
        def send_and_end(queue):
            queue.put(Own(2 * torch.ones(2, device="cuda", requires_grad=True)))
        """,
        """
        queue, simple = SPAWN.Queue(), SPAWN.SimpleQueue()
        between = 2 * x.clone().requires_grad_()
        shared = torch.nn.Linear(2, 2, device="cuda").share_memory()
        print(shared.weight.is_shared())
        for what in (between, torch.cuda.Event(), torch.cuda.Stream(), shared):
            told(lambda: queue.put([what]))
            told(lambda: simple.put(what))
        told(lambda: SPAWN.Process(target=print, args=(shared,)).start())
        told(lambda: x.untyped_storage()._share_cuda_())
        for what in (between, shared.weight, torch.cuda.Event()):
            queue.put(Own(what))
            told(lambda: queue.get(timeout=60))
        other = SPAWN.Process(target=send_and_end, args=(queue,))
        other.start()
        other.join(60)
        told(lambda: queue.get(timeout=60))
        queue.put([x, 5])
        print(queue.get(timeout=60)[1])
        """,
    )
    event = "SharingRefused: interprocess events are not supported on a proxied device"
    shared = "SharingRefused: share_memory_() was called on this tensor"
    assert out[0] == "True"
    assert out[1:5] == [COWARDLY, COWARDLY, event, event]
    assert all(line.startswith("TypeError: cannot pickle 'Stream'") for line in out[5:7])
    assert out[7:10] == [shared] * 3
    assert "no handle that another process could open" in out[10]
    assert out[11:] == [COWARDLY, shared, event, COWARDLY, "5"]
