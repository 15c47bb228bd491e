"""The doctor tells the truth about this machine, in one sentence per part."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from singularity_proxy.capsule import namespace
from singularity_proxy.capsule.images.criu import Criu
from singularity_scheduler.cli.local import doctor


def test_every_line_is_a_word_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.main([])
    lines = capsys.readouterr().out.splitlines()
    checks = lines[: lines.index("")]
    assert len(checks) == len(doctor.CHECKS)
    for line in checks:
        assert any(f"  {state} " in line for state in doctor.STATES)
        assert line.endswith(".")
    assert code == (0 if lines[-1] == "The platform can run on this machine." else 1)


def test_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.main(["--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] == (code == 0)
    by_name = {check["name"]: check for check in document["checks"]}
    assert by_name["python"]["facts"]["prefix"] == sys.prefix
    assert by_name["torch"]["state"] == "ok"
    assert by_name["users"]["state"] in ("ok", "degraded")
    assert all(check["state"] in doctor.STATES for check in document["checks"])


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--frobnicate"]) == 64
    assert capsys.readouterr().err.startswith(
        "jupyter singularity doctor: there is no option --frobnicate;"
    )


def test_only_a_missing_required_part_stops_the_platform() -> None:
    ok = doctor.Check("a", "ok", ".", required=True)
    degraded = doctor.Check("b", "degraded", ".", required=True)
    optional = doctor.Check("c", "missing", ".")
    needed = doctor.Check("d", "missing", ".", required=True)
    assert doctor.can_run([ok, degraded, optional])
    assert not doctor.can_run([ok, needed])


def test_exit_code_and_names_when_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = doctor.Check("torch", "missing", "Gone.", required=True)
    monkeypatch.setattr(doctor, "CHECKS", (lambda: lost,))
    assert doctor.main([]) == 1
    assert "The platform cannot run on this machine: torch missing." in capsys.readouterr().out


def test_small_shared_memory_is_said(tmp_path: Path) -> None:
    assert doctor.check_shm(tmp_path, wanted=1).state == "ok"
    small = doctor.check_shm(tmp_path, wanted=1 << 60)
    assert small.state == "degraded"
    assert "--shm-size" in small.sentence
    assert doctor.check_shm(tmp_path / "none").state == "missing"


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert doctor.check_compilers().state == "missing"


def test_native_module_without_library_and_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor.build, "cache_folders", lambda: [tmp_path])
    assert doctor.check_native().state == "degraded"
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert doctor.check_native().state == "missing"


def test_cards_without_a_cuda_build_are_degraded(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [{"name": "NVIDIA H200", "bytes": 141 << 30}]
    monkeypatch.setattr(doctor, "_nvml", lambda: (cards, "570.1", ""))
    monkeypatch.setattr(doctor, "_torch_build", lambda: ("2.13.0+cpu", None))
    check = doctor.check_accelerators()
    assert check.state == "degraded"
    assert "NVIDIA H200 with 141.0 GiB" in check.sentence
    monkeypatch.setattr(doctor, "_torch_build", lambda: ("2.13.0", "12.6"))
    assert doctor.check_accelerators().state == "ok"
    monkeypatch.setattr(doctor, "_nvml", lambda: ([], None, "NVML: no driver"))
    assert doctor.check_accelerators().sentence == (
        "No accelerator (NVML: no driver): the cpu device is the physical device."
    )


def test_criu_that_does_not_work_is_degraded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Criu(False, "/usr/sbin/criu", "3.17.1", "Too old.")
    monkeypatch.setattr(doctor.criu, "probe", lambda: found)
    assert doctor.check_criu().state == "degraded"
    monkeypatch.setattr(doctor.criu, "probe", lambda: Criu(False, None, None, "None here."))
    assert doctor.check_criu().state == "missing"


def holder_that_says(folder: Path, line: str, code: int = 0) -> Path:
    """A holder that reports `line` to whoever started it."""
    program = folder / "holder"
    find = 'while [ "$1" != --report ]; do shift; done'
    program.write_text(f"#!/bin/sh\n{find}\necho '{line}' >/proc/self/fd/$2\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("line", "code", "state", "sentence"),
    [
        ("init 5", 0, "ok", "Checkpoints can be proved here, in capsules that leave no trace."),
        (
            f"error clone {errno.EPERM}",
            125,
            "missing",
            "No checkpoint can be proved here, because no capsule that leaves no trace can be "
            "made: 'clone' is refused here (Operation not permitted).",
        ),
        (
            f"error view {errno.ENODEV}",
            125,
            "missing",
            "No checkpoint can be proved here, because no capsule that leaves no trace can be "
            "made: 'view' is refused here (No such device).",
        ),
        (
            f"error clone {errno.ENOMEM}",
            125,
            "degraded",
            "Whether checkpoints can be proved here could not be found out: 'clone' failed "
            "(Cannot allocate memory).",
        ),
    ],
)
def test_whether_checkpoints_can_be_proved(
    line: str,
    code: int,
    state: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    works = Criu(True, "/usr/sbin/criu", "4.2", "It works.")
    monkeypatch.setattr(doctor.criu, "probe", lambda: works)
    monkeypatch.setattr(namespace, "missing_right", lambda: "")
    monkeypatch.setattr(namespace, "ask_again", lambda probe: probe())
    holder = holder_that_says(tmp_path, line, code)
    monkeypatch.setattr(namespace, "find_holder", lambda: holder)
    check = doctor.check_proofs()
    assert (check.state, check.sentence, check.required) == (state, sentence, False)


def test_no_proofs_without_criu_a_holder_or_a_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor.criu, "probe", lambda: Criu(False, None, None, "None here."))
    assert doctor.check_proofs().sentence == "No checkpoint can be proved here: None here."
    monkeypatch.setattr(doctor.criu, "probe", lambda: Criu(True, "criu", "4.2", "It works."))
    monkeypatch.setattr(doctor.build, "cache_folders", lambda: [tmp_path])
    check = doctor.check_proofs()
    assert (check.state, "--program capsule/holder.cpp" in check.sentence) == ("degraded", True)
    assert list(tmp_path.iterdir()) == [], "nothing is built"
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert doctor.check_proofs().state == "missing"
    monkeypatch.setattr(namespace, "find_holder", lambda: tmp_path / "holder")
    monkeypatch.setattr(namespace, "missing_right", lambda: "root has no CAP_SYS_ADMIN here")
    assert doctor.check_proofs().sentence.endswith("made: root has no CAP_SYS_ADMIN here.")


@pytest.mark.root
def test_users_get_own_uids_only_where_they_can_read_the_environment(
    monkeypatch: pytest.MonkeyPatch, short_dir: Path
) -> None:
    closed = short_dir / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(closed / "python"))
    check = doctor.check_users()
    assert check.state == "degraded"
    assert "All users share uid 0" in check.sentence


def test_without_root_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check = doctor.check_users()
    assert check.state == "degraded"
    assert "one Hub user only" in check.sentence
