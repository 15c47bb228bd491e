"""The set-up of `./dev`: what it goes on without."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FUNCTIONS = "seconds_since has_stamp attempt step compile_engine"
BUILDS = "scheduler/singularity_scheduler/build"

PYTHON = f"""#!/usr/bin/env bash
if [[ $* == *--key ]]; then echo abc; exit; fi
echo called >>calls
[[ ! -e broken ]] || {{ echo 'no compiler'; exit 1; }}
mkdir -p {BUILDS}/abc
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a Python in which `compiled` takes no time; it fails where `broken` is."""
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    for folder in ("stamps", "log", "scheduler"):
        (tmp_path / folder).mkdir()
    return tmp_path


def compile_engine(checkout: Path) -> str:
    program = f"""
        set -euo pipefail
        for name in {FUNCTIONS}; do eval "$(sed -n "/^$name() {{/,/^}}/p" {ROOT}/dev)"; done
        PY=./python STATE=. STAMPS=stamps
        compile_engine
        echo on
    """
    done = subprocess.run(
        ["bash", "-c", program], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def calls(checkout: Path) -> int:
    return len((checkout / "calls").read_text().splitlines())


def test_the_engine_is_compiled_once_and_again_when_its_build_is_gone(checkout: Path) -> None:
    assert compile_engine(checkout).endswith(" s\non\n")
    assert compile_engine(checkout) == "on\n"
    assert calls(checkout) == 1
    (checkout / BUILDS / "abc").rmdir()
    compile_engine(checkout)
    assert calls(checkout) == 2
    assert (checkout / BUILDS / "abc").is_dir()


def test_without_a_compiled_engine_the_set_up_goes_on(checkout: Path) -> None:
    (checkout / "broken").touch()
    line, on = compile_engine(checkout).splitlines()
    assert line.endswith(
        " failed: simulations run interpreted, several times slower (.dev/log/engine.log says why)."
    )
    assert on == "on"
    (checkout / "broken").unlink()
    assert " failed" not in compile_engine(checkout)
    assert calls(checkout) == 2
