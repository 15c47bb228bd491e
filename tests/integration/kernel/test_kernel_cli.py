"""`jupyter singularity`: help, run, install."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.capsule.process import read_exit_code
from singularity_proxy.errors import BadRequest, Forbidden, NoSpace
from singularity_scheduler.cli import COMMANDS
from singularity_scheduler.cli.runs import run
from support.kernel_service import TOKEN, Scheduler, scheduler

COMMAND = [sys.executable, "-m", "jupyter", "singularity"]


def cli(
    *words: str, command: list[str] | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(command or COMMAND), *words],
        env={**os.environ, **env},
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture
def platform(short_dir: Path) -> Iterator[Scheduler]:
    with scheduler(short_dir) as running:
        yield running


# ---- the base command ----------------------------------------------------------------------------


def test_help_lists_the_commands_and_loads_none_of_them() -> None:
    code = (
        "import sys; from singularity_scheduler.cli import COMMANDS, main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {m for m, _ in COMMANDS.values()} | {'torch', 'sqlalchemy', 'jupyterhub'}\n"
        "print(sorted(heavy & {*sys.modules}))"
    )
    done = cli(command=[sys.executable, "-c", code])
    for name, (_, text) in COMMANDS.items():
        assert f"\n{name} " in done.stdout
        assert f"  {text}\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_names_the_nearest() -> None:
    done = cli("docter")
    assert done.returncode == 64
    assert "did you mean 'doctor'?" in done.stderr
    assert done.stderr.count("\n") == 1


# ---- run -----------------------------------------------------------------------------------------


def test_run_gives_the_command_a_session_and_passes_everything_through(
    platform: Scheduler, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os, sys\n"
        "print(json.dumps(dict(os.environ)))\n"
        "print(sys.stdin.read().upper(), sys.argv[1:], file=sys.stderr)\n"
        "sys.exit(7)\n"
    )
    words = ["run", "--tier", "basic", "--devices=3", sys.executable, str(script), "--tier", "x"]
    done = subprocess.run(
        [*COMMAND, *words],
        env={**os.environ, **platform.environment},
        input="typed",
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 7
    assert done.stderr == "TYPED ['--tier', 'x']\n"
    (session,) = platform.sessions
    assert session.json["kind"] == "batch"
    assert (session.json["tier"], session.json["devices"]) == ("basic", 3)
    assert session.launch["mode"] == "joined"
    assert session.launch["argv"] == [sys.executable, str(script), "--tier", "x"]
    env = json.loads(done.stdout)
    assert env["SINGULARITY_SESSION"] == session.json["id"]
    assert TOKEN not in done.stdout + str(session.launch)
    assert "SINGULARITY_API_URL" not in env


def test_run_takes_tier_and_devices_from_the_server(platform: Scheduler) -> None:
    done = cli(
        *("run", "true"),
        **platform.environment,
        SINGULARITY_TIER="premium",
        SINGULARITY_DEVICES="2",
    )
    assert (done.returncode, done.stderr) == (0, "")
    (session,) = platform.sessions
    assert (session.json["tier"], session.json["devices"]) == ("premium", 2)


@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGTERM, 41), (signal.SIGINT, 42), (signal.SIGUSR1, 43), (signal.SIGHUP, 44)],
)
def test_signals_reach_the_command(platform: Scheduler, signum: int, code: int) -> None:
    script = (
        "import signal, sys, time\n"
        "for n, c in ((15, 41), (2, 42), (10, 43), (1, 44)):\n"
        "    signal.signal(n, lambda *_, c=c: sys.exit(c))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    running = subprocess.Popen(
        [*COMMAND, "run", sys.executable, "-c", script],
        env={**os.environ, **platform.environment},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert running.stdout is not None
    with running.stdout:
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signum)
        assert running.wait(30) == code


def test_a_command_ended_by_a_signal(platform: Scheduler) -> None:
    assert cli("run", "sh", "-c", "kill -9 $$", **platform.environment).returncode == 137


def test_inside_a_session_the_command_joins_it(platform: Scheduler) -> None:
    done = cli(
        *("run", "sh", "-c", "echo $SINGULARITY_SESSION"),
        **platform.environment,
        SINGULARITY_SESSION="0123456789ab",
    )
    assert (done.returncode, done.stdout) == (0, "0123456789ab\n")
    assert platform.sessions == []


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 64, "there is no command to run"),
        (["--tier", "gold", "true"], 69, "SINGULARITY_API_URL"),
        (["no-such-program"], 127, "'no-such-program' was not found; no session was started"),
        (["/etc/passwd"], 126, "'/etc/passwd' cannot be executed; no session was started"),
        (["--devices", "many", "true"], 64, "expected an int"),
        (["--teir", "x", "true"], 64, "--teir"),
    ],
)
def test_wrong_use_of_run(words: list[str], code: int, sentence: str) -> None:
    done = cli("run", *words)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (BadRequest("tier 'gold' is unknown; it is one of premium, standard, basic"), 64),
        (Forbidden("you may not use this platform"), 77),
        (NoSpace("the disk is full; nothing was started"), 70),
    ],
)
def test_a_refusal_is_one_sentence_and_the_command_does_not_run(
    platform: Scheduler, refusal: BadRequest, code: int
) -> None:
    platform.refusal = refusal
    done = cli("run", "echo", "it ran", **platform.environment)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"jupyter singularity run: {refusal.message}\n"


def test_a_command_whose_start_was_not_answered_starts_once(platform: Scheduler) -> None:
    platform.answers_lost = 2
    done = cli("run", "sh", "-c", "echo $SINGULARITY_SESSION", **platform.environment)
    (session,) = platform.sessions
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{session.json['id']}\n", "")
    assert platform.answers_lost == 0


def test_devices_of_the_server_that_are_no_number(platform: Scheduler) -> None:
    done = cli("run", "true", **platform.environment, SINGULARITY_DEVICES="many")
    assert done.returncode == 64
    assert "SINGULARITY_DEVICES is 'many'" in done.stderr


EXTENSION = "share/jupyter/labextensions/jupyter-singularity"


def test_run_writes_the_exit_code_down_for_an_agent_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begun(*_: object) -> dict[str, str]:
        return {**os.environ, "SINGULARITY_SOCKET": str(tmp_path / "agent.sock")}

    monkeypatch.delenv("SINGULARITY_SESSION", raising=False)
    monkeypatch.setattr(run, "_begin", begun)
    assert run.run(["sh", "-c", "exit 3"]) == 3
    assert read_exit_code(str(tmp_path), os.getuid()) == 3


# ---- install -------------------------------------------------------------------------------------


def test_install_puts_all_files_where_jupyter_looks(tmp_path: Path) -> None:
    for _ in range(2):  # idempotent
        done = cli("install", "--prefix", str(tmp_path), "--json")
        assert done.returncode == 0, done.stderr
    spec, logo, config, *page = (Path(path) for path in json.loads(done.stdout))
    assert {path.is_relative_to(tmp_path / EXTENSION) for path in page} == {True}
    assert spec == tmp_path / "share/jupyter/kernels/singularity/kernel.json"
    assert logo == spec.with_name("logo-svg.svg")
    assert config.parent == tmp_path / "etc/jupyter/jupyter_server_config.d"
    enabled = json.loads(config.read_text())["ServerApp"]["jpserver_extensions"]
    assert enabled == {"singularity_labext": True}
    listed = cli(
        "list",
        "--json",
        command=[sys.executable, "-m", "jupyter", "kernelspec"],
        JUPYTER_PATH=str(tmp_path / "share/jupyter"),
    )
    found = json.loads(listed.stdout)["kernelspecs"]["singularity"]["spec"]
    assert found["display_name"] == "Python 3 (Singularity)"
    assert found["metadata"]["kernel_provisioner"]["provisioner_name"] == "singularity"


def test_an_older_build_of_the_extension_leaves_no_scripts(tmp_path: Path) -> None:
    old = tmp_path / EXTENSION / "static/remoteEntry.0123.js"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    assert cli("install", "--prefix", str(tmp_path)).returncode == 0
    assert not old.exists()
    about = json.loads((tmp_path / EXTENSION / "package.json").read_text())
    assert (tmp_path / EXTENSION / about["jupyterlab"]["_build"]["load"]).exists()


def test_install_for_one_user(tmp_path: Path) -> None:
    places = {"JUPYTER_DATA_DIR": str(tmp_path / "d"), "JUPYTER_CONFIG_DIR": str(tmp_path / "c")}
    assert cli("install", "--user", **places).returncode == 0
    assert (tmp_path / "d/kernels/singularity/kernel.json").exists()
    assert (tmp_path / "c/jupyter_server_config.d/singularity_labext.json").exists()


def test_install_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cli("install", "--prefix", str(tmp_path / "file"))
    assert done.returncode == 73
    assert done.stderr.count("\n") == 1
    assert "could not be written" in done.stderr


# ---- environment ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "words", "code", "sentence"),
    [
        (None, [], 64, "FOLDER"),
        ("file", ["there"], 64, "there is there and is no virtual environment"),
        ("full", ["there"], 64, "there is there and is no virtual environment"),
        ("2.7", ["there"], 64, "there is an environment of Python 2.7, and the device proxy is"),
        (None, ["a b"], 64, "a kernel cannot be called 'a b'"),
        ("system", ["there"], 64, "there uses the packages of the system, and would lose them"),
        (None, [sys.prefix], 64, "is the environment of the platform itself"),
        (None, ["new", "--kernel", ".."], 64, "a kernel cannot be called '..'"),
        (None, ["new", "--kernel", "taken"], 70, "a kernel 'taken' of another environment"),
        (None, ["new", "--kernel", "Python3"], 70, "a kernel 'python3' of another environment"),
        (None, ["/proc/1/new"], 73, "could not be written"),
    ],
)
def test_environments_that_cannot_be_made(
    tmp_path: Path, prepare: str | None, words: list[str], code: int, sentence: str
) -> None:
    taken = tmp_path / "data/kernels/taken/kernel.json"
    taken.parent.mkdir(parents=True)
    taken.write_text('{"argv": ["/usr/bin/python3"]}')
    there = tmp_path / "there"
    if prepare == "file":
        there.write_text("")
    elif prepare is not None:
        there.mkdir()
        here = ".".join(map(str, sys.version_info[:2]))
        versions = {
            "2.7": "version = 2.7.18",
            "system": f"version = {here}.1\ninclude-system-site-packages = true\n",
        }
        version = versions.get(prepare, "")
        (there / ("pyvenv.cfg" if version else "thesis.tex")).write_text(version)
    before = sorted(tmp_path.rglob("*"))
    command = [sys.executable, "-m", "jupyter", "singularity", "environment", *words]
    done = subprocess.run(
        command,
        env={**os.environ, "JUPYTER_DATA_DIR": str(tmp_path / "data")},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert sentence in done.stderr
    assert sorted(tmp_path.rglob("*")) == before
