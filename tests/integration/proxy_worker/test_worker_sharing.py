"""Device tensors on their way to other processes of a session."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from singularity_proxy.standalone import Standalone


@pytest.fixture
def session() -> Iterator[Standalone]:
    with Standalone(capacity_bytes=1 << 28) as one:
        yield one


def test_a_queue_refuses_device_tensors_in_the_caller(session: Standalone) -> None:
    code = """
        import torch, torch.multiprocessing as mp
        from concurrent.futures import ProcessPoolExecutor
        class Own:
            def __init__(self, inside):
                self.inside = inside
        class Items(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return torch.full((3,), float(i), device="cuda")
        def told(call):
            try:
                print("no error", call())
            except RuntimeError as error:
                print("cannot be shared between processes of a session" in str(error))
        if __name__ == "__main__":
            x = torch.ones(2, device="cuda")
            spawn = mp.get_context("spawn")
            for queue in (spawn.Queue(), spawn.JoinableQueue(), spawn.SimpleQueue()):
                told(lambda: queue.put({"x": [x]}))
            queue = spawn.Queue(1)
            queue.put(Own(x))
            told(lambda: queue.get(timeout=60))
            queue.put(Own(x.cpu()))
            print(queue.get(timeout=60).inside.tolist())
            for pin in (False, True):
                loader = torch.utils.data.DataLoader(
                    Items(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
                told(lambda: next(iter(loader)))
            with ProcessPoolExecutor(1, mp_context=spawn) as pool:
                told(lambda: pool.submit(len, Own(x)).result(60))
                print(pool.submit(len, [1, 2]).result(60))
    """
    place = session.folder / "queues.py"
    place.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, str(place)],
        env=session.env(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*["True"] * 4, "[1.0,", "1.0]", *["True"] * 3, "2"], done.stderr
