"""The set-up of `./dev`: its steps side by side, and one sentence for what goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomllib

from tools import lock, uv_install

ROOT = Path(__file__).parents[3]
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


def functions() -> str:
    """The functions of `./dev`, without the commands at its end."""
    text = (ROOT / "dev").read_text()
    found = re.findall(r"^\w+\(\) \{(?:.*\}$|(?:.*\n)+?\}$)", text, re.MULTILINE)
    assert len(found) > 30
    return "\n".join(found)


def start(checkout: Path, program: str, **options: Any) -> subprocess.Popen[str]:
    """`program` with the functions of `./dev`, below the folder `checkout`."""
    text = f"""
        set -euo pipefail
        {functions()}
        ROOT=$PWD PY=./python STATE=. STAMPS=stamps STARTED=$EPOCHREALTIME
        PYTHONS=(/usr/bin/python3)
        declare -A PIDS=() TEXTS=() BEGUN=() USUAL=()
        trap stop_steps EXIT
        {program}
    """
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(["bash", "-c", text], cwd=checkout, text=True, **options)


def run(checkout: Path, program: str, code: int = 0) -> str:
    """What it says on stdout and stderr; it has to end with `code`."""
    process = start(checkout, program, stderr=subprocess.STDOUT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == code, said
    return str(said)


def calls(checkout: Path) -> int:
    return len((checkout / "calls").read_text().splitlines())


def test_the_engine_is_compiled_once_and_again_when_its_build_is_gone(checkout: Path) -> None:
    compile_engine = "compile_engine; echo on"
    assert run(checkout, compile_engine).endswith(" s\non\n")
    assert run(checkout, compile_engine) == "on\n"
    assert calls(checkout) == 1
    (checkout / BUILDS / "abc").rmdir()
    run(checkout, compile_engine)
    assert calls(checkout) == 2
    assert (checkout / BUILDS / "abc").is_dir()


def test_without_a_compiled_engine_the_set_up_goes_on(checkout: Path) -> None:
    (checkout / "broken").touch()
    _begun, line, on = run(checkout, "compile_engine; echo on").splitlines()
    assert line.endswith(
        " failed: simulations run interpreted, several times slower (.dev/log/engine.log says why)."
    )
    assert on == "on"
    (checkout / "broken").unlink()
    assert " failed" not in run(checkout, "compile_engine")
    assert calls(checkout) == 2


MEET = """
    meet() { echo here >"$1"; until [[ -e $2 ]]; do sleep 0.02; done; }
    begin one key 'the one' 7 meet a b
    begin two key 'the other' 7 meet b a
    finish one two
"""


def test_steps_run_side_by_side_and_say_so_in_plain_lines(checkout: Path) -> None:
    lines = run(checkout, MEET).splitlines()  # each waits for the other one
    assert re.match(r"  the one +begun, usually 7 s$", lines[0])
    assert re.match(r"  the other +begun, usually 7 s$", lines[1])
    assert re.match(r"  the one +\d+\.\d s$", lines[2])
    assert re.match(r"  the other +\d+\.\d s$", lines[3])
    assert run(checkout, MEET) == ""  # done
    usual = (checkout / "usual/one").read_text().strip()
    assert f"usually {usual} s" in run(checkout, MEET.replace(" key ", " other-key "))


def test_a_terminal_shows_what_is_waited_for(checkout: Path) -> None:
    ours, theirs = pty.openpty()
    program = "slow() { until [[ -e seen ]]; do sleep 0.02; done; }; step one key 'the one' 7 slow"
    with contextlib.closing(os.fdopen(ours, "rb", buffering=0)) as terminal:
        process = start(checkout, program, stdout=theirs, stderr=theirs)
        os.close(theirs)
        said = b""
        while b"waiting for: the one" not in said:
            said += terminal.read(1000)
        (checkout / "seen").touch()
        with contextlib.suppress(OSError):  # how a terminal ends
            while more := terminal.read(1000):
                said += more
        assert process.wait(60) == 0
    assert re.search(rb"\r\x1b\[K  waiting for: the one \d+\.\d s of about 7", said)
    assert re.search(rb"  the one +\d+\.\d s\r\n$", said)


def test_a_step_that_fails_ends_the_others(checkout: Path) -> None:
    program = """
        forever() { echo $BASHPID >pid; exec sleep 1000; }
        fails() { until [[ -s pid ]]; do sleep 0.02; done; echo reason; false; echo never; }
        begin one key 'the one' 7 forever
        step two key 'the other' 7 fails
    """
    said = run(checkout, program, code=1)
    assert said.endswith("the end of ./log/two.log:\nreason\n")
    pid = int((checkout / "pid").read_text())
    with contextlib.suppress(ProcessLookupError):  # it may be over already
        fd = os.pidfd_open(pid)
        assert select.select([fd], [], [], 30)[0], "a step goes on without ./dev"
        os.close(fd)
    assert not (checkout / "stamps/one").exists()
    assert not (checkout / "stamps/two").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_step_is_repeated_and_told_to_repair(
    checkout: Path, number: signal.Signals
) -> None:
    program = """
        work() {
          echo "repair=$REPAIR" >>calls
          echo $BASHPID >pid
          [[ -e free ]] || exec sleep 1000
        }
        step one key 'the one' 7 work
    """
    process = start(checkout, program, start_new_session=True)
    while not (checkout / "pid").exists() or not (checkout / "pid").read_text():
        assert process.poll() is None
    process.send_signal(number)
    process.communicate(timeout=60)
    if number == signal.SIGKILL:  # nobody is left to end it
        os.kill(int((checkout / "pid").read_text()), signal.SIGKILL)
    (checkout / "free").touch()
    run(checkout, program)
    run(checkout, program)
    assert (checkout / "calls").read_text() == "repair=\nrepair=1\n"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("error: Failed to fetch: `https://example.invalid/simple/yarl/`", "no package index gave"),
        ("ERROR: Could not find a version that satisfies uv==1", "no package index gave"),
        ("npm error code EAI_AGAIN", "no package index gave"),
        ("OSError: [Errno 28] No space left on device", "the disk is full; make room below"),
        ("npm error code ENOSPC", "the disk is full; make room below"),
    ],
)
def test_what_people_meet_is_one_sentence(checkout: Path, said: str, sentence: str) -> None:
    program = f"fails() {{ cat <<'TEXT'\n{said}\nTEXT\nfalse; }}; step one key 'the one' 7 fails"
    _begun, line = run(checkout, program, code=1).splitlines()
    assert re.match(rf"  the one +failed: {sentence}.*run the same command again", line)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.root
def test_a_full_disk_is_one_sentence_though_no_log_can_be_written(small_disk: Path) -> None:
    for folder in ("stamps", "log"):
        (small_disk / folder).mkdir()
    program = """
        fills() { dd if=/dev/zero of=file bs=64k count=100; }
        step one key 'the one' 7 fails_after
    """.replace("fails_after", "fills")
    line = run(small_disk, program, code=1).splitlines()[-1]
    assert "failed: the disk is full; make room below" in line
    (small_disk / "file").unlink()
    assert " s\n" in run(small_disk, program.replace("count=100", "count=1"))


def test_two_at_once_wait_for_each_other(checkout: Path) -> None:
    program = "STATE=. STAMPS=stamps; lock_setup; echo in; until [[ -e {0} ]]; do sleep 0.02; done"
    first = start(checkout, program.format("free"))
    assert first.stdout is not None
    assert first.stdout.readline() == "in\n"
    second = start(checkout, "lock_setup; echo in")
    assert second.stdout is not None
    assert second.stdout.readline() == (
        "  another ./dev is setting up this checkout; waiting for it (at most 10 minutes)\n"
    )
    (checkout / "free").touch()
    assert second.communicate(timeout=60)[0] == "in\n"
    assert first.wait(60) == 0
    first.communicate()


def test_a_python_that_is_too_old_is_named(checkout: Path) -> None:
    old = checkout / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = -c ] && echo 3.9\nexit $([ "$1" = -c ]; echo $?)\n')
    old.chmod(0o755)
    said = run(checkout, "PYTHONS=(./python3); install_system; echo on", code=1)
    assert said == (
        "./dev: Python 3.11 or newer is needed and ./python3 is 3.9; install a newer one with its "
        "venv and headers, and run the same command again.\n"
    )


def test_a_missing_compiler_is_named(checkout: Path) -> None:
    program = f"""
        find_python() {{ echo {sys.executable}; }}
        unset CXX
        for name in bash sed tr paste; do ln -s "$(command -v $name)" .; done
        PATH=$PWD
        install_system
    """
    lines = run(checkout, program, code=1).splitlines()
    assert lines == [
        "  Missing Debian packages; to install them: "
        "sudo apt-get install -y --no-install-recommends g++",
        "./dev: cannot go on without: g++",
    ]


# ---- the parts of a full run ---------------------------------------------------------------------

PYTEST = """#!/usr/bin/env bash
for word; do [[ $word != --part=* ]] || part=${word#--part=}; done
grep -qs $$ groups/*/cgroup.procs && beside=' in an idle group' || beside=''
echo "$part$beside" >>ran
if [[ -e groups && $part == campaign ]]; then until grep -q patient ran; do sleep 0.02; done; fi
exit "$(cat "$part" 2>/dev/null || echo 0)"
"""


def run_parts(checkout: Path, code: int, **statuses: int) -> list[str]:
    """The parts of a full run in the order in which they began, and which ran in an idle group;
    `statuses` are what pytest exits with, by part."""
    (checkout / "python").write_text(PYTEST)
    (checkout / "ran").unlink(missing_ok=True)
    for part in ("main", "campaign", "patient"):
        (checkout / part).write_text(str(statuses.get(part, 0)))
    # Files of a folder stand for those that the kernel makes in a new group.
    program = """
        CGROUPS=(groups)
        mkdir() { command mkdir "$@" && touch "$1/cpu.idle" "$1/cgroup.procs"; }
        rmdir() { cp "$1/cpu.idle" idle; rm "$1"/*; command rmdir "$1"; }
        run_full_tests --full
    """
    run(checkout, program, code)
    return (checkout / "ran").read_text().splitlines()


@pytest.fixture
def groups(checkout: Path) -> Path:
    """A folder in which groups can be made."""
    (checkout / "groups").mkdir()
    return checkout / "groups"


def test_patient_tests_run_beside_the_campaign_when_it_leaves_a_processor(
    checkout: Path, groups: Path
) -> None:
    main, *beside = run_parts(checkout, 0)
    assert main == "main"
    assert sorted(beside) == ["campaign", "patient in an idle group"]
    assert (checkout / "idle").read_text() == "1\n"
    assert list(groups.iterdir()) == []


def test_patient_tests_run_before_the_campaign_where_no_group_can_be_made(checkout: Path) -> None:
    assert run_parts(checkout, 0) == ["main", "patient", "campaign"]


@pytest.mark.parametrize("part", ["main", "campaign", "patient"])
def test_a_full_run_fails_where_a_part_fails(checkout: Path, groups: Path, part: str) -> None:
    run_parts(checkout, 1, **{part: 1})
    others = {"main": 5, "campaign": 5, "patient": 5} | {part: 0}
    run_parts(checkout, 0, **others)
    run_parts(checkout, 1, **others | {part: 1})


def test_a_full_run_that_is_interrupted_or_has_no_tests_says_so(checkout: Path) -> None:
    assert run_parts(checkout, 2, main=2) == ["main"]
    assert len(run_parts(checkout, 5, main=5, campaign=5, patient=5)) == 3


# ---- packages ------------------------------------------------------------------------------------


def test_uv_gets_the_settings_of_pip() -> None:
    listing = (
        ":env:.find-links='/disk/wheels'\n"
        "global.find-links='/other'\n"
        "global.index-url='https://packages.example/simple'\n"
        "global.extra-index-url='\\nfile:///disk/simple\\nfile:///disk/more'\n"
        "global.constraint='/disk/limits.txt'\n"
        "install.no-index='true'\n"
        "list.format='columns'\n"
    )
    found = uv_install.uv_environment(
        uv_install.read_pip_settings(listing), {"UV_CONSTRAINT": "mine", "HOME": "/home/me"}
    )
    assert found == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_NO_PROGRESS": "1",
        "UV_FIND_LINKS": "/disk/wheels",
        "UV_DEFAULT_INDEX": "https://packages.example/simple",
        "UV_INDEX": "file:///disk/simple file:///disk/more",
        "UV_NO_INDEX": "true",
        "UV_CONSTRAINT": "mine",
        "HOME": "/home/me",
    }


def test_each_package_is_pinned_in_one_part() -> None:
    pins = [
        line.partition("==")[0].lower().replace("_", "-")
        for path in sorted((ROOT / "requirements").glob("*.lock"))
        for line in path.read_text().splitlines()
    ]
    assert len(pins) == len(set(pins)) > 200


def test_the_parts_are_what_the_extras_need() -> None:
    for name in ("uv", "accelerate"):
        pytest.importorskip(name, reason="./dev setup test docs bench libraries was not run")
    assert {path.stem for path in (ROOT / "requirements").glob("*.lock")} == lock.PARTS.keys()
    for part, lines in lock.make_parts().items():
        assert (ROOT / f"requirements/{part}.lock").read_text().splitlines() == lines, part


def test_the_platform_alone_needs_no_browser_driver() -> None:
    package = json.loads((ROOT / "package.json").read_text())
    assert package["dependencies"].keys() == {"configurable-http-proxy"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert "pytest>=8" in extras["dev"]
    platform = (ROOT / "requirements/platform.lock").read_text()
    assert not re.search(r"^(pytest|hypothesis|mkdocs|azure|pyarrow|mypy)", platform, re.MULTILINE)
