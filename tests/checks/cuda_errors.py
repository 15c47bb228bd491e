"""Errors that users of CUDA know, and refusals. Unchanged user code that says "cuda"; one function is one check."""

import os

import torch
from checks.base import D, check
from torch import nn


@check
def device_mismatch_error():
    try:
        torch.ones(3, device=D) + torch.ones(3)
    except RuntimeError as e:
        assert "same device" in str(e)
        return
    return "LEAK: no error when cpu and cuda tensors are mixed"


@check
def device_mismatch_linear():
    try:
        nn.Linear(3, 3).cuda()(torch.ones(2, 3))
    except RuntimeError:
        return
    return "LEAK: no error: cpu input into a cuda module"


@check
def numpy_error():
    try:
        torch.ones(3, device=D).numpy()
    except TypeError as e:
        assert "cuda" in str(e)
        return
    return "LEAK: .numpy() worked"


@check
def shape_error():
    try:
        torch.ones(2, 3, device=D) @ torch.ones(2, 3, device=D)
    except RuntimeError as e:
        assert "cannot be multiplied" in str(e)


@check
def async_error_reported():
    e = nn.Embedding(10, 4).cuda()
    e(torch.tensor([1], device=D))
    e(torch.tensor([3], device=D))
    try:
        e(torch.tensor([99], device=D))
        torch.cuda.synchronize()
    except (RuntimeError, IndexError) as x:
        assert float(torch.ones(2, device=D).sum()) == 2
        return "ok: " + str(x).split("\n")[0][:140]
    return "no error"


@check
def linalg_singular_error():
    try:
        torch.linalg.inv(torch.zeros(2, 2, device=D))
    except torch.linalg.LinAlgError:
        return
    except RuntimeError:
        return "LEAK: plain RuntimeError instead of torch.linalg.LinAlgError"


@check
def fork_guard():
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.zeros(2, device=D)
            os.write(w, b"no error")
        except RuntimeError as e:
            os.write(w, str(e)[:60].encode())
        os._exit(0)
    os.waitpid(pid, 0)
    m = os.read(r, 100).decode()
    assert "forked" in m, "LEAK: child used the ring: " + m


@check
def dlpack():
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(torch.ones(3, device=D)))


@check
def cuda_array_interface():
    a = torch.ones(3, device=D).__cuda_array_interface__
    return "LEAK: exports a pointer that cannot be dereferenced" if a["data"][0] else "ok"


@check
def ipc_share():
    import torch.multiprocessing as mp

    q = mp.get_context("spawn").SimpleQueue()
    q.put(torch.ones(2, device=D))


@check
def cuda_graphs():
    g = torch.cuda.CUDAGraph()
    x = torch.ones(2, device=D)
    with torch.cuda.graph(g):
        y = x * 2
    g.replay()


@check
def share_memory():
    nn.Linear(2, 2).cuda().share_memory()
