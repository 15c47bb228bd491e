"""Unchanged PyTorch code for tests of the agent: several processes that use "cuda" at once.

    agent_many.py FOLDER

The parent keeps a tensor. Three children (spawned) compute with 32 MiB each, say so, and wait for
the file `end`; then one returns, one leaves by os._exit, and one sleeps on until it is killed.
Everybody prints one line with one write.
"""

import multiprocessing
import os
import sys
import time


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def child(number: int, folder: str) -> None:
    import torch

    torch.manual_seed(number)
    x = torch.randn(1024, 1024, device="cuda")
    large = torch.full((8 << 20,), float(number), device="cuda")
    for _ in range(20):
        x = torch.nn.functional.gelu(x * 1.01)
    say("child", number, os.getpid(), float(x.sum()).hex(), float(large[-1]))
    while not os.path.exists(os.path.join(folder, "end")):
        time.sleep(0.01)
    if number == 1:
        os._exit(0)
    if number == 2:
        time.sleep(14400)


if __name__ == "__main__":
    import torch

    kept = torch.arange(8.0, device="cuda")
    say("parent", float(kept.sum()))
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=child, args=(n, sys.argv[1])) for n in range(3)]
    for process in children:
        process.start()
    for process in children:
        process.join()
    say("parent still has", float(kept.sum()))
    pid = os.fork()
    if pid == 0:
        try:
            kept + 1
        except RuntimeError as error:
            say("forked:", str(error).splitlines()[0])
        os._exit(0)
    os.waitpid(pid, 0)
    say("parent goes on", float((kept * 2).sum()))
    time.sleep(14400)
