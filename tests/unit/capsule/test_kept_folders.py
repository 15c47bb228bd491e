"""Which folders keep their place in a capsule's private /tmp and /dev/shm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.capsule import namespace
from singularity_proxy.capsule.launcher import CapsuleSpec
from singularity_proxy.capsule.namespace import kept_folders


@pytest.fixture(autouse=True)
def product_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout under test may lie in /tmp itself."""
    monkeypatch.setattr(namespace, "_OWN_FOLDERS", ())


def spec(**values: Any) -> CapsuleSpec:
    plain: dict[str, Any] = {"argv": ["true"], "env": {}, "cwd": "/", "log_path": "/dev/null"}
    return CapsuleSpec(**{**plain, **values})


def test_what_the_command_names_stays(short_dir: Path) -> None:
    for name in ("home", "session", "data/2026", "lib", "other"):
        (short_dir / name).mkdir(parents=True)
    found = kept_folders(
        spec(
            argv=["python", f"--input={short_dir}/data/2026/in.csv", "/etc/hosts", "-c", "pass"],
            cwd=f"{short_dir}/home",
            env={"PYTHONPATH": f"{short_dir}/lib:/usr/lib", "HOME": f"{short_dir}/home"},
            keep=(f"{short_dir}/session",),
        )
    )
    assert found == [f"{short_dir}/{name}" for name in ("data", "home", "lib", "session")]


def test_a_folder_inside_another_needs_no_place_of_its_own(short_dir: Path) -> None:
    (short_dir / "a" / "b").mkdir(parents=True)
    assert kept_folders(spec(cwd=f"{short_dir}/a/b", keep=(f"{short_dir}/a",))) == [
        f"{short_dir}/a"
    ]


def test_a_checkout_in_tmp_stays_as_a_whole(short_dir: Path) -> None:
    program = short_dir / "checkout" / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    (short_dir / "s").mkdir()
    found = kept_folders(spec(argv=[str(program)], keep=(f"{short_dir}/s",)))
    assert found == [f"{short_dir}/checkout", f"{short_dir}/s"]


def test_who_works_in_tmp_itself_keeps_the_machines() -> None:
    assert kept_folders(spec(cwd="/tmp")) is None
    assert kept_folders(spec(argv=["python", "/tmp/script.py"])) is None


def test_what_lies_elsewhere_or_does_not_exist_is_nobodys_business() -> None:
    assert kept_folders(spec(cwd="/", argv=["/tmp/not/there/x"], env={"HOME": "/root"})) == []
