"""`python -m singularity_proxy.gpu` where there is no GPU: its one sentence, and its code on cpu.

The physical device is replaced by `cpu` and the driver by the test double, so every line of the
runner runs for real; what it says about GPUs is another matter and comes from a GPU only.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from singularity_proxy.gpu import __main__ as runner
from singularity_proxy.gpu import checks
from singularity_proxy.gpu.__main__ import ALL
from singularity_proxy.gpu.checks import Run, Skip, Wrong, attempt, compare
from support import driver_double, matrix

SMALL = ["staged_copies", "out_of_memory", "park_by_copy", "park_by_driver", "park_by_choice"]
"""Run by default; all of them with --full."""


def run(*arguments: str, **env: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "singularity_proxy.gpu", *arguments],
        capture_output=True, text=True, timeout=1500, check=False, env={**os.environ, **env},
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: tests/gpu does it for real")
def test_without_a_gpu_it_says_why_and_does_nothing(tmp_path: Path) -> None:
    code, report, said = run()
    assert code == 0
    assert report["report"] == "gpu"
    assert report["skipped"].endswith(", so nothing was tried.")
    assert said == f"skipped: {report['skipped']}\n"
    assert not {"checks", "figures", "counts"} & set(report)
    for fact in ("python", "kernel", "torch", "nvidia_driver", "driver_checkpoint"):
        assert fact in report["machine"]


@pytest.mark.timeout(1600)
def test_all_of_it_runs_on_a_device_of_type_cpu(tmp_path: Path) -> None:
    library = driver_double.build(tmp_path)
    names = list(ALL) if matrix.is_full() else SMALL
    code, report, said = run(
        *("--device", "cpu", "--quick", "--driver-library", library, *names),
        DRIVER_DOUBLE=str(tmp_path),
    )
    assert code == 0, said
    assert report["counts"] == {"passed": len(names), "failed": 0, "skipped": 0}, said
    assert list(report["checks"]) == names
    assert all(entry["what"].endswith(".") for entry in report["checks"].values())
    assert report["figures"]["park_copy_bytes"] == report["figures"]["park_driver_bytes"] > 0
    assert report["checks"]["park_by_choice"]["ways"][:2] == ["driver", "copy"]
    assert not report["checks"]["staged_copies"]["pinned"]


CPU = Run("cpu", True, "")


def test_what_goes_wrong_is_an_entry_and_not_the_end() -> None:
    def fails(run: Run) -> dict[str, Any]:
        """What it does."""
        raise Wrong("it is not so")

    def cannot(run: Run) -> dict[str, Any]:
        """What it does."""
        raise Skip("there is none")

    def breaks(run: Run) -> dict[str, Any]:
        """What it does."""
        raise KeyError("x")

    for check, status, reason in (
        (fails, "failed", "it is not so"),
        (cannot, "skipped", "there is none"),
        (breaks, "failed", "KeyError: 'x'"),
    ):
        entry = attempt(check, CPU)
        assert entry.pop("seconds") >= 0
        assert entry == {"what": "What it does.", "status": status, "reason": reason}


def test_losses_are_compared_as_the_device_allows() -> None:
    one, close, far = ["0x1.0p+0"], ["0x1.00001p+0"], ["0x1.1p+0"]
    gpu = Run("cuda", True, "")
    assert compare(CPU, "x", one, one)
    assert not compare(gpu, "x", close, one)
    for run_, losses in ((CPU, close), (gpu, far), (gpu, ["nan"])):
        with pytest.raises(Wrong, match="losses differ by up to"):
            compare(run_, "x", losses, one)


def test_a_program_that_fails_is_one_sentence() -> None:
    with pytest.raises(Wrong, match=r"^a program ended with code 1: ValueError: no$"):
        checks.answer_of([sys.executable, "-c", "raise ValueError('no')"], {})
    with pytest.raises(Wrong, match="did not end within 0 s"):
        checks.answer_of([sys.executable, "-c", "import time; time.sleep(60)"], {}, timeout=0.2)


def test_children_have_the_hook_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with torch and a checkout alone; the Python below knows no installation."""
    bare = str(getattr(sys, "_base_executable", sys.executable))
    code = "import sys; print('singularity_proxy.worker.hook' in sys.modules)"
    monkeypatch.setenv("PYTHONPATH", str(Path(runner.__file__).parents[2]))
    monkeypatch.setenv("SINGULARITY_SESSION", "bare")
    monkeypatch.setattr(site, "getsitepackages", list)

    def has_hook() -> str:
        return subprocess.check_output([bare, "-c", code], text=True, timeout=60).strip()

    assert has_hook() == "False"
    before = os.environ["PYTHONPATH"]
    with runner.hook_in_children():
        assert has_hook() == "True"
    assert os.environ["PYTHONPATH"] == before
