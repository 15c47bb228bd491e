"""`./dev setup` in a clone, where it cannot go on: one sentence; the same command goes on later."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NOTHING_ANSWERS = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_RETRIES": "0",
}


def clone(folder: Path) -> None:
    """What a set-up reads of this checkout, as it is now."""
    for name in ("dev", "package.json", "package-lock.json", ".npmrc", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name in ("requirements", "tools", "proxy"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("build", "*.pyc"))


def setup(folder: Path, **variables: str) -> list[str]:
    """The lines of a `./dev setup` that fails."""
    hidden = ("PIP_", "UV_", "VIRTUAL_ENV", "npm_config")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    done = subprocess.run(
        [folder / "dev", "setup"],
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    return done.stdout.splitlines()


def test_without_a_network(tmp_path: Path) -> None:
    clone(tmp_path)
    lines = setup(tmp_path, **NOTHING_ANSWERS)
    sentence = (
        "failed: no package index gave what is needed; check the network and pip's and npm's own "
        "settings, then run the same command again (.dev/log/tools.log)."
    )
    assert lines[-1].endswith(sentence)
    assert [line for line in lines if "Python environment" in line and line.endswith(" s")]
    begun, again = setup(tmp_path, **NOTHING_ANSWERS)  # what was done stays
    assert "installer and build tools" in begun
    assert again.endswith(sentence)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.root
def test_on_a_full_disk(small_disk: Path) -> None:
    clone(small_disk)
    for _ in range(2):
        line = setup(small_disk)[-1]
        assert "failed: the disk is full; make room below" in line
        assert line.endswith(f"{small_disk} and run the same command again.")
    subprocess.run(["mount", "-o", "remount,size=200m", small_disk], check=True)
    lines = setup(small_disk, **NOTHING_ANSWERS)  # with room, it goes on
    assert [line for line in lines if "Python environment" in line and line.endswith(" s")]
    assert "no package index gave what is needed" in lines[-1]
