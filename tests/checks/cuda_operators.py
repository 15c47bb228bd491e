"""Operators that are more than a call with strided tensors, and how wrong calls are refused."""

import re

import torch

from .base import D, check, close, eq

INDICES = torch.tensor([[0, 1, 1], [2, 0, 2]])
VALUES = torch.tensor([3.0, 4.0, 5.0])


def refused(kind, text, function):
    try:
        function()
    except kind as error:
        first = str(error).splitlines()[0]
        return None if re.search(text, first) else f"another text: {first}"
    return "not refused"


def dense(x):
    return x.to_dense() if x.layout != torch.strided else x


def coo(device):
    return torch.sparse_coo_tensor(INDICES, VALUES, (2, 4), device=device)


SPARSE = {
    "coalesce": lambda s: s.coalesce(),
    "add": lambda s: s + s,
    "add to dense": lambda s: torch.ones(2, 4, device=s.device) + s,
    "mul": lambda s: s * s,
    "mul by a number": lambda s: s * 2,
    "mm": lambda s: torch.sparse.mm(s, torch.ones(4, 3, device=s.device)),
    "mv": lambda s: s @ torch.ones(4, device=s.device),
    "addmm": lambda s: torch.addmm(
        torch.ones(2, 3, device=s.device), s, torch.ones(4, 3, device=s.device)
    ),
    "sum": lambda s: torch.sparse.sum(s, 0),
    "softmax": lambda s: torch.sparse.softmax(s, 1),
    "sin": lambda s: s.coalesce().sin(),
    "t": lambda s: s.t(),
    "add_": lambda s: s.clone().add_(s),
    "mul_": lambda s: s.clone().mul_(3),
    "zero_": lambda s: s.clone().zero_(),
    "index_select": lambda s: s.index_select(0, torch.tensor([1], device=s.device)),
    "cat": lambda s: torch.cat([s, s]),
    "sparse x sparse": lambda s: torch.sparse.mm(s, s.t()),
    "to_sparse": lambda s: s.to_dense().to_sparse(),
    "sparse_mask": lambda s: torch.ones(2, 4, device=s.device).sparse_mask(s.coalesce()),
    "csr": lambda s: s.to_sparse_csr(),
    "csr mm": lambda s: s.to_sparse_csr() @ torch.ones(4, 3, device=s.device),
    "csr add": lambda s: s.to_sparse_csr() + s.to_sparse_csr(),
    "csr to coo": lambda s: s.to_sparse_csr().to_sparse(),
    "csc": lambda s: s.to_sparse_csc(),
    "bsr": lambda s: s.to_dense().to_sparse_bsr((1, 2)),
}


@check
def sparse_operators():
    """Each twice: what the worker remembers of the first call must hold for the second one."""
    wrong = []
    for name, function in SPARSE.items():
        for _ in range(2):
            native, proxied = function(coo("cpu")), function(coo(D))
            if proxied.layout != native.layout or proxied.device.type != D:
                wrong.append(name)
            elif not torch.equal(dense(native), dense(proxied).cpu()):
                wrong.append(name)
    return ", ".join(wrong) or None


@check
def sparse_indices_outside_are_refused_by_the_proxy():
    bad = torch.sparse_coo_tensor(INDICES.to(D) + 1000, VALUES.to(D), (2, 4))
    return refused(RuntimeError, "size is inconsistent with indices", bad.coalesce)


@check
def sparse_gradients():
    def run(device):
        torch.manual_seed(1)
        table = torch.nn.Embedding(10, 3, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(table.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([1, 2, 1], device=device)).square().sum().backward()
            optimizer.step()
        return table.weight.detach()

    eq(run("cpu"), run(D))


@check
def sparse_saved_and_printed():
    assert "nnz=3" in repr(coo(D))
    eq(coo(D).cpu().to_dense(), coo("cpu").to_dense())
    eq(coo("cpu").to(D).to_dense(), coo("cpu").to_dense())


@check
def nested_operators():
    def run(device, layout):
        torch.manual_seed(2)
        parts = [torch.rand(2, 3).to(device), torch.rand(4, 3).to(device)]
        nested = torch.nested.nested_tensor(parts, layout=layout, device=device)
        weight = torch.rand(5, 3).to(device)
        result = torch.nn.functional.linear(nested + nested, weight)
        return result.relu().unbind()

    for layout in (torch.strided, torch.jagged):
        for a, b in zip(run("cpu", layout), run(D, layout), strict=True):
            close(a, b)


@check
def nested_reduction_is_refused_or_right():
    nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], device=D)
    return refused(NotImplementedError, "nested tensors is not supported", lambda: nested.sum(-1))


@check
def quantized_is_refused():
    text = "quantized tensors are not supported on the proxied device"
    on_host = torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.qint8)
    made = refused(
        NotImplementedError,
        text,
        lambda: torch.quantize_per_tensor(torch.rand(3, device=D), 0.1, 0, torch.qint8),
    )
    return made or refused(NotImplementedError, text, lambda: on_host.to(D))


@check
def tensors_on_two_devices_are_refused_as_on_cuda():
    on, off = torch.rand(3, 3, device=D), torch.rand(3, 3)
    index = torch.tensor([1])
    two = "^Expected all tensors to be on the same device, but found at least two devices, "
    one = "^Expected all tensors to be on the same device, but got {} is on cpu, different from "
    one += "other tensors on cuda:0 \\(when checking argument in method wrapper_CUDA_{}\\)$"
    cases = [
        (two + "cuda:0 and cpu!$", lambda: on + off),
        (two + "cuda:0 and cpu!$", lambda: off + on),  # the first that is not on the host
        (two + "cuda:0 and cpu!$", lambda: off**on),
        (two + "cuda:0 and cpu!$", lambda: torch.where(on > 0, on, off)),
        (one.format("mat2", "mm"), lambda: on @ off),
        (one.format("index", "_index_select"), lambda: on.index_select(0, index)),
        (one.format("tensors", "cat"), lambda: torch.cat([on, off])),
        (one.format("target", "nll_loss_forward"),
         lambda: torch.nn.functional.nll_loss(on, torch.tensor([0, 1, 2]))),
        ("^Expected out tensor to have device cuda:0, but got cpu instead$",
         lambda: torch.sum(on, 0, out=torch.empty(3))),
        # Made of other operators, on CUDA too: they look at the devices themselves.
        ("^expected device 'cuda:0' but got 'cpu' for values output$",
         lambda: torch.mode(on, 0, out=(torch.empty(3), torch.empty(3, dtype=int, device=D)))),
        ("nput tensors must all be on the same device. Input 0 is on device cpu and input 1",
         lambda: torch.block_diag(off, on)),
        ("^indices should be either on cpu or on the same device as the indexed tensor \\(cpu\\)",
         lambda: off[index.to(D)]),
    ]  # fmt: skip
    wrong = [refused(RuntimeError, text, function) for text, function in cases]
    eq(on[index], on.cpu()[index])  # a list of indices may stay on the host
    return "; ".join(x for x in wrong if x) or None


@check
def out_lists_take_the_shapes_of_the_results():
    x = torch.arange(6.0, device=D).view(2, 3)
    out = [torch.empty(0, device=D) for _ in range(2)]
    torch.unbind_copy(x, out=out)
    eq(out[1], x[1])
    torch.split_with_sizes_copy(x, [1, 2], dim=1, out=out)
    eq(out[1], x[:, 1:])


@check
def gradients_that_are_zero_without_memory():
    x = torch.rand(3, device=D, requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.sgn(x).sum(), x)
    eq(gradient, torch.zeros(3))


@check
def strides_of_dimensions_of_size_one():
    x = torch.rand(4, 1).to(D).as_strided((4, 1), (1, 7))
    assert (
        torch.empty_like(x).stride()
        == torch.empty_like(x.cpu().as_strided((4, 1), (1, 7))).stride()
    )
    assert (x + 1).stride() == (torch.rand(4, 1).as_strided((4, 1), (1, 7)) + 1).stride()


@check
def an_operator_without_a_kernel_says_so():
    return refused(
        NotImplementedError,
        "^aten::batch_norm_stats: PyTorch has no kernel of this operator for the physical device",
        lambda: torch.batch_norm_stats(torch.rand(3, 3, device=D), 0.1),
    )


FAMILY = re.compile(r"^(CUDA|SparseCUDA|SparseCsrCUDA|NestedTensorCUDA|QuantizedCUDA): (.*)$", re.M)
HOST = re.compile(r"^(SparseCPU|SparseCsrCPU|NestedTensorCPU|QuantizedCPU): ", re.M)
COMMUNICATION = ("c10d::", "_c10d_functional::", "c10d_functional::", "_c10d_functional_autograd::")


@check
def every_kernel_of_the_device_is_ours():
    """The audit: nothing that would touch device memory in this process can be reached. Kernels
    written in Python are made of other operators."""
    foreign, missing, ours = [], [], 0
    for name in torch._C._dispatch_get_all_op_names():
        dump = torch._C._dispatch_dump(name)
        keys = set()
        for key, where in FAMILY.findall(dump):
            keys.add(key)
            if "singularity_proxy" in where:
                ours += 1
            elif ".py:" not in where and not name.startswith(COMMUNICATION):
                foreign.append(f"{name} {key}")
        missing += [
            f"{name} {key}" for key in HOST.findall(dump) if key.replace("CPU", "CUDA") not in keys
        ]
    if foreign or missing:
        return f"{len(foreign)} foreign: {foreign[:5]}; {len(missing)} missing: {missing[:5]}"
    return None if ours > 2400 else f"only {ours} kernels"
