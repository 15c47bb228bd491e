"""docs/reference/support.md: what the sweep over PyTorch's operators found (tests/sweep)."""

from __future__ import annotations

import json
from pathlib import Path

from generate_text import table

KNOWN = Path(__file__).resolve().parent.parent / "tests" / "sweep" / "known.json"

KINDS: list[tuple[object, ...]] = [
    ("strided, every dtype", "yes", "complex numbers and views of all kinds included"),
    (
        "half precision on a `cpu` device",
        "yes",
        "softmax in half to single precision and FFTs, which PyTorch has for CUDA only, are "
        "computed in single precision",
    ),
    ("sparse COO and CSR, CSC, BSR, BSC", "yes", "indices are checked by the device proxy"),
    ("nested, jagged layout", "yes", ""),
    (
        "nested, strided layout",
        "mostly",
        "with attention and `nn.TransformerEncoder`; what would read device memory in the worker "
        "is refused with a sentence",
    ),
    ("quantized", "no", "refused with a sentence; quantize on the host"),
    ("lists (`torch._foreach_*`, fused optimizers)", "yes", ""),
    (
        "sent to other processes of the session (`torch.multiprocessing`)",
        "as copies",
        "strided, sparse and nested ones; what `share_memory_()` was called on is refused with a "
        "sentence",
    ),
]

DISTRIBUTED: list[tuple[object, ...]] = [
    (
        "`all_reduce`, `reduce`, `broadcast`, `all_gather`, `reduce_scatter`, `all_to_all`, "
        "`gather`, `scatter`, `barrier`, with all their forms for lists, single tensors, "
        "splits and different sizes, asynchronous and coalesced",
        "yes",
        "the dtypes and errors of NCCL's front end; bitwise operations on whole numbers as well",
    ),
    (
        "`send`, `recv`, `isend`, `irecv`, `batch_isend_irecv`",
        "yes",
        "tags mean nothing, as in NCCL",
    ),
    ("collectives of Python objects", "yes", ""),
    (
        "several groups, sub-groups, device meshes, `destroy_process_group`, timeouts",
        "yes",
        "two ranks on one virtual device are refused with a sentence",
    ),
    (
        "`DistributedDataParallel`, `ZeroRedundancyOptimizer`, FSDP, `fully_shard`, DTensor, "
        "tensor and pipeline parallelism, `torch.distributed.checkpoint`",
        "yes",
        "small models of each are compared with gloo, or with one process, in the tests",
    ),
    ("collectives in a graph of `torch.compile`", "yes", "such a graph runs operator by operator"),
    (
        "`SyncBatchNorm`",
        "on GPUs",
        "PyTorch has its operators for GPUs only, so a `cpu` device has none",
    ),
    ("`monitored_barrier`", "no", "gloo groups and host tensors only, as with NCCL"),
    ("sparse tensors", "no", "refused, as by NCCL"),
    ("time estimates, memory pools and symmetric memory of NCCL", "no", "refused"),
    ("ranks on several nodes", "no", "all ranks of a session run on one node"),
]


def support_page() -> str:
    known = json.loads(KNOWN.read_text())
    rows: list[tuple[object, ...]] = []
    for name, entry in known["operators"].items():
        samples = entry["samples"]
        count = sum(len(indices) for indices in samples.values())
        rows.append((f"`{name}`", ", ".join(samples), count, entry["reason"], entry["example"]))
    limit = known["samples_of_each"]
    which = f"the first {limit}" if limit else "all"
    equal = 100 * known["opinfo_equal_fraction"]
    return "\n".join(
        [
            "# Operators on the device\n",
            "Every operator of PyTorch's own test tables is run with their samples, once "
            "natively on the host and once on `cuda` under the device proxy (with a `cpu` device "
            "behind it), and compared bit by bit: values, dtypes, shapes, strides, which memory is "
            "shared, error types, gradients, in-place forms, `out=`. A test runs a part of it each "
            "time and fails when this page is not true.\n",
            f"Last sweep: {known['date']}, PyTorch {known['torch']}: "
            f"{which} samples, {known['opinfo_samples']} in {known['tasks']} pairs of operator "
            "and dtype, "
            f"{equal:.2f} % equal.\n",
            "## Kinds of tensors\n",
            table(("tensors", "supported", "remarks"), KINDS),
            "## torch.distributed\n",
            "Between the ranks of a session (`torchrun`, `%%singularity run`), each with a virtual "
            "device of its own, under the backend names `nccl`, none, `cpu:gloo,cuda:nccl` and "
            "`gloo` (host tensors then go through gloo). Results are folded in the order of the "
            "ranks, bit by bit the same on any number of physical devices; with "
            "`SINGULARITY_COLLECTIVES=fast` each device folds its own ranks' first.\n",
            table(("what", "supported", "remarks"), DISTRIBUTED),
            "## Samples that differ\n",
            table(("operator", "dtypes", "samples", "reason", "example (native / proxied)"), rows)
            if rows
            else "None.\n",
        ]
    )
