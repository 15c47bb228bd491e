"""docs/reference/support.md: what the sweep over PyTorch's operators found (tests/sweep)."""

from __future__ import annotations

import json
from pathlib import Path

from generate_text import table

KNOWN = Path(__file__).resolve().parent.parent / "tests" / "sweep" / "known.json"

KINDS: list[tuple[object, ...]] = [
    ("strided, every dtype", "yes", "complex numbers and views of all kinds included"),
    ("sparse COO and CSR, CSC, BSR, BSC", "yes", "indices are checked by the device proxy"),
    ("nested, jagged layout", "yes", ""),
    (
        "nested, strided layout",
        "mostly",
        "what would read device memory in the worker is refused with a sentence",
    ),
    ("quantized", "no", "refused with a sentence; quantize on the host"),
    ("lists (`torch._foreach_*`, fused optimizers)", "yes", ""),
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
            "## Samples that differ\n",
            table(("operator", "dtypes", "samples", "reason", "example (native / proxied)"), rows)
            if rows
            else "None.\n",
        ]
    )
