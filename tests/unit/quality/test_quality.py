"""The checks a commit must pass: lint, format, types, spelling, who imports whom. `./dev lint` runs
the same ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import house

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ["proxy", "scheduler", "kernel_ext", "hub_spawner", "ui_labext"]
CHECKS = {
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy", *PACKAGES],
    "codespell": ["codespell"],
    "imports": ["lint-imports", "--no-cache"],
    "bash": ["bash", "-n", "dev", ".ci/run"],
}


@pytest.mark.parametrize("name", CHECKS)
def test_check(name: str) -> None:
    command = CHECKS[name]
    program = Path(sys.prefix) / "bin" / command[0]
    argv = [str(program) if program.exists() else command[0], *command[1:]]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    python = house.graph_python_imports()
    assert len(python) > 300
    typescript = house.graph_typescript_imports(house.list_sources())
    assert len(typescript) > 30
    assert house.find_circles(python) + house.find_circles(typescript) == []


def product_files() -> list[Path]:
    kinds = {".py", ".cpp", ".h", ".ts", ".tsx"}
    return [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*"))
        if path.suffix in kinds and "node_modules" not in path.parts
    ]


def test_no_promises_in_product_code() -> None:
    promise = re.compile(
        r"TO" r"DO|FIX" r"ME|(?<!c10::)NotImplemented" r"Error|unittest\.mock|# type: ignore(?!\[)"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in product_files()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if promise.search(line)
    ]
    assert not found, "\n".join(found)


def test_versions_are_pinned() -> None:
    locks = sorted((ROOT / "requirements").glob("*.lock"))
    lines = [line for lock in locks for line in lock.read_text().splitlines()]
    loose = [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)]
    assert len(locks) > 1
    assert not loose
    for lock in ("package-lock.json", "ui_labext/package-lock.json"):
        assert not re.search(r'"resolved"', (ROOT / lock).read_text()), lock
