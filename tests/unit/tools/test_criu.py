"""CRIU is used only when it is new enough and works here; otherwise one sentence says why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from singularity_proxy.capsule.images import criu


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH; the Python environment has no private CRIU."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setattr(criu, "missing_right", lambda: "")
    return folder


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def fake(version: str, check: str = "exit 0") -> str:
    return f'if [ "$1" = --version ]; then echo "Version: {version}"; else {check}; fi'


def test_none(bin_dir: Path) -> None:
    assert criu.probe() == criu.Criu(False, None, None, "There is no CRIU on this machine.")


@pytest.mark.parametrize("version", ["3.17.1", "4.1.1"])
def test_too_old(bin_dir: Path, version: str) -> None:
    program(bin_dir / "criu", fake(version))
    found = criu.probe()
    assert not found.ok
    assert found.version == version
    assert found.reason == f"CRIU {version} cannot dump a notebook kernel; 4.2 or newer can."


@pytest.mark.parametrize("version", ["4.2", "4.2.1", "4.10", "5.0"])
def test_new_enough(bin_dir: Path, version: str) -> None:
    program(bin_dir / "criu", fake(version))
    found = criu.probe()
    assert found.ok
    assert found.path == str(bin_dir / "criu")


def test_refused_by_the_machine(bin_dir: Path) -> None:
    program(bin_dir / "criu", fake("4.2", "echo 'Error (x.c:1): no kernel support'; exit 1"))
    found = criu.probe()
    assert not found.ok
    assert "this machine refuses it: Error (x.c:1): no kernel support" in found.reason


def test_refused_to_root_without_its_right(bin_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criu, "missing_right", lambda: "root has no CAP_SYS_ADMIN here")
    program(bin_dir / "criu", fake("4.2", "echo 'Error (x.c:1): cannot open ns'; exit 1"))
    assert criu.probe().reason == (
        "CRIU 4.2 is here but this machine refuses it: root has no CAP_SYS_ADMIN here."
    )


def test_broken(bin_dir: Path) -> None:
    program(bin_dir / "criu", "echo 'cannot load libfoo'; exit 127")
    assert "does not start: cannot load libfoo" in criu.probe().reason


def test_a_killed_check_is_made_again(bin_dir: Path, tmp_path: Path) -> None:
    once = f"[ -e {tmp_path}/asked ] && exit 0; : > {tmp_path}/asked; kill -9 $$"
    program(bin_dir / "criu", fake("4.2", once))
    assert criu.probe().ok


def test_a_check_that_is_killed_each_time_says_nothing(bin_dir: Path) -> None:
    program(bin_dir / "criu", fake("4.2", "kill -9 $$"))
    found = criu.probe()
    assert (found.ok, found.conclusive) == (False, False)
    assert "could not be asked" in found.reason
    assert "ended by signal 9" in found.reason
    program(bin_dir / "criu", fake("4.2", "kill -11 $$"))  # it crashes: that is an answer
    assert criu.probe().conclusive


def test_private_one_comes_first(bin_dir: Path) -> None:
    program(bin_dir / "criu", fake("4.3"))
    program(criu.private_path(), fake("4.2.1"))
    assert criu.probe().path == str(criu.private_path())
    program(criu.private_path(), fake("4.1"))  # but a working one beats it
    assert criu.probe().path == str(bin_dir / "criu")


def test_obtain_keeps_what_works(bin_dir: Path) -> None:
    program(bin_dir / "criu", fake("4.2"))
    assert criu.obtain(limit_s=1).ok


def test_obtain_without_apt_says_so(bin_dir: Path) -> None:
    found = criu.obtain(limit_s=1)
    assert not found.ok
    assert found.reason == (
        "There is no CRIU on this machine. None could be fetched: "
        "apt-get is missing, this is not a Debian system."
    )


def test_obtain_without_a_mirror_leaves_nothing(bin_dir: Path) -> None:
    program(bin_dir / "apt-get", "exit 0")
    program(bin_dir / "dpkg-deb", "exit 0")
    found = criu.obtain(limit_s=5)
    assert found.reason.endswith("apt has no Debian mirror configured.")
    assert list(criu.private_path().parent.parent.iterdir()) == []


def test_obtain_is_bounded_in_time(bin_dir: Path) -> None:
    source = 'echo "Debian|Debian||http://mirror.invalid/debian/"'
    program(
        bin_dir / "apt-get",
        f'if [ "$1" = indextargets ]; then {source}; else read x </dev/zero; fi',
    )
    program(bin_dir / "dpkg-deb", "exit 0")
    found = criu.obtain(limit_s=0.5)
    assert "apt-get update failed: no answer within" in found.reason


def test_command_line(bin_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert criu.main(["probe"]) == 1
    assert capsys.readouterr().out == "There is no CRIU on this machine.\n"
    program(bin_dir / "criu", fake("4.2"))
    assert criu.main(["probe"]) == 0
    assert criu.main([]) == 2
