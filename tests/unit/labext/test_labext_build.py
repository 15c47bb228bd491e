"""The JupyterLab extension as `./dev setup` built it: its own tests, its size, its place."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "ui_labext"
BUILT = FOLDER / "singularity_labext" / "labextension"
LIMIT_KB = 300
DASHBOARD = ROOT / "scheduler/singularity_scheduler/service/dashboard"
DASHBOARD_FILES = ("static/dashboard.js", "static/dashboard.css", "templates/base.html")
DASHBOARD_LIMIT_KB = 10


def run(*command: str, cwd: Path = FOLDER, **env: str) -> subprocess.CompletedProcess[str]:
    tools = f"{FOLDER / 'node_modules/.bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": tools, "CI": "true", **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(
    "command",
    [
        ("jest", "--ci"),
        ("prettier", "--check", "src", "test", "style", "schema", "*.json", "*.mjs"),
        ("tsc", "--noEmit", "-p", "tsconfig.test.json"),
        ("node", "messages.mjs", "--check"),
    ],
    ids=["jest", "prettier", "types", "strings to translate"],
)
def test_check(command: tuple[str, ...]) -> None:
    run(*command)


def test_the_bundle_is_small() -> None:
    scripts = list((BUILT / "static").glob("*.js"))
    assert scripts
    size = sum(len(gzip.compress(script.read_bytes())) for script in scripts) / 1024
    assert size <= LIMIT_KB, f"{size:.0f} KB gzip"


def test_the_script_of_the_dashboard_is_small() -> None:
    script = DASHBOARD / "static/dashboard.js"
    assert len(gzip.compress(script.read_bytes())) <= DASHBOARD_LIMIT_KB * 1024


def test_what_is_built_loads_what_is_there() -> None:
    about = json.loads((BUILT / "package.json").read_text())
    assert about["name"] == "jupyter-singularity"
    assert (BUILT / about["jupyterlab"]["_build"]["load"]).exists()


def test_jupyterlab_finds_it_enabled(tmp_path: Path) -> None:
    install = (sys.executable, "-m", "singularity_kernel.install", "--prefix", str(tmp_path))
    run(*install, cwd=ROOT)
    listed = run(
        *(sys.executable, "-m", "jupyterlab.labextensions", "list"),
        cwd=tmp_path,
        JUPYTER_PATH=str(tmp_path / "share/jupyter"),
    )
    lines = (listed.stdout + listed.stderr).splitlines()
    [line] = [x for x in lines if x.split()[:1] == ["jupyter-singularity"]]
    assert "enabled" in line
    assert "OK" in line


def test_the_wheel_brings_it(tmp_path: Path) -> None:
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    wheel = tmp_path / run(sys.executable, "-c", code, cwd=ROOT).stdout.split()[-1]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    place = "jupyter_singularity-0.1.0.data/data/share/jupyter/labextensions/jupyter-singularity/"
    inside = {name.removeprefix(place) for name in names if name.startswith(place)}
    built = {str(file.relative_to(BUILT)) for file in BUILT.rglob("*") if file.is_file()}
    assert inside == built | {"install.json"}
    pages = {name for name in names if name.startswith("singularity_scheduler/service/dashboard/")}
    folder = "singularity_scheduler/service/dashboard"
    assert {f"{folder}/{name}" for name in DASHBOARD_FILES} <= pages
    assert not [name for name in names if "node_modules" in name or "/labextension/" in name]
