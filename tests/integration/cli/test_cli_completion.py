"""Completion as a shell asks for it: argcomplete's protocol, and bash itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from singularity_scheduler.cli import COMMANDS
from support.cli_commands import BIN, LIMIT_S, OWN, Commands, Done
from support.scheduler_service import platform

pytestmark = pytest.mark.asyncio


async def complete(
    line: str, env: Mapping[str, str] | None = None, program: str = "jupyter-singularity"
) -> list[str]:
    """What the shell is offered at the end of `line`; fails if anything is printed elsewhere.

    The shell starts the program without arguments, the line in its environment, and reads the
    answer from file descriptor 8.
    """
    read, write = os.pipe()
    asked = {
        **os.environ,
        **(env or {}),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
        "COMP_TYPE": "9",
    }
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", f"exec {BIN / program} 8>&{write} 9>/dev/null"),
        env=asked,
        pass_fds=[write],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(write)
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate()
    with os.fdopen(read) as answer:
        offered = answer.read()
    assert (process.returncode, out, err) == (0, b"", b"")
    return offered.split("\n") if offered else []


NOWHERE = {"SINGULARITY_API_URL": "", "JUPYTERHUB_API_TOKEN": ""}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("jupyter-singularity ", list(COMMANDS)),
        ("jupyter-singularity s", ["submit", "show", "suspend", "simulate"]),
        ("jupyter-singularity completion ", ["bash", "zsh", "fish"]),
        ("jupyter-singularity ls --st", ["--state"]),
        ("jupyter-singularity ls --state par", ["parking", "parked"]),
        ("jupyter-singularity ls --kind ", ["interactive", "batch"]),
        ("jupyter-singularity run --tier ", ["premium", "standard", "basic"]),
        ("jupyter-singularity cancel --all --ki", ["--kind"]),
        ("jupyter-singularity ls --LsApp.li", ["--LsApp.limit"]),
        ("jupyter-singularity nix ", []),
        ("jupyter-singularity demo ", []),
        ("jupyter-singularity show ", []),
    ],
)
async def test_commands_and_options(line: str, offered: list[str]) -> None:
    assert await complete(line, NOWHERE) == offered


async def test_options_are_those_of_the_command() -> None:
    offered = await complete("jupyter-singularity logs --", NOWHERE)
    assert {"--follow", "--tail", "--json", "--url", "--token-file", "--help"} <= {*offered}
    assert not {"--state", "--f", "--y"} & {*offered}
    assert not any(option.startswith("--Logs") for option in offered)


async def test_behind_jupyter_too() -> None:
    assert await complete("jupyter singularity park", NOWHERE, "jupyter") == ["park"]
    assert await complete("jupyter singularity ls --st", NOWHERE, "jupyter") == ["--state"]


async def test_files_are_completed_where_files_are_meant(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").touch()
    for words in ("submit", "run python", "ls --token-file"):
        line = f"jupyter-singularity {words} {tmp_path}/tr"
        assert await complete(line, NOWHERE) == [f"{tmp_path}/train.ipynb"]


async def test_sessions_come_from_the_service(tmp_path: Path) -> None:
    async with platform(tmp_path) as running:
        env = Commands(running.url, "alice-token").environment
        first = await running.kernel(name="train.ipynb")
        second = await running.kernel(name="explore.ipynb")
        await running.kernel("bob", name="theirs.ipynb")
        both = {first, second, "train.ipynb", "explore.ipynb"}
        assert {*await complete("jupyter-singularity park ", env)} == both
        assert await complete(f"jupyter-singularity park {first[:9]}", env) == [first]
        assert await complete("jupyter-singularity why tr", env) == ["train.ipynb"]
        assert await complete("jupyter singularity cancel exp", env, "jupyter") == ["explore.ipynb"]

        await running.client().end_session(first)
        assert {*await complete("jupyter-singularity park ", env)} == {second, "explore.ipynb"}
        assert {*await complete("jupyter-singularity logs ", env)} == both

        # What the line says counts, and a token that is refused is no error.
        typed = f"jupyter-singularity park --url {running.url} "
        bob = {**NOWHERE, "JUPYTERHUB_API_TOKEN": "bob-token"}
        assert "theirs.ipynb" in await complete(typed, bob)
        assert await complete(typed, {"JUPYTERHUB_API_TOKEN": "expired"}) == []


async def test_a_service_that_does_not_answer_offers_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        env = Commands(f"http://127.0.0.1:{silent.getsockname()[1]}/s/", "alice-token").environment
        assert await complete("jupyter-singularity park ", env) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_the_code_for_a_shell(tmp_path: Path, shell: str) -> None:
    cli = Commands("", "")
    done = await cli("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert "jupyter-singularity" in done.out
    if shutil.which(shell):
        code = tmp_path / "code"
        code.write_text(done.out)
        checked = await Commands("", "")("-n", str(code), program=(shutil.which(shell) or "",))
        assert checked == Done(0, "", "")


async def test_completion_for_another_shell() -> None:
    done = await Commands("", "")("completion", "tcsh")
    assert (done.code, done.out) == (64, "")
    assert "there is no completion for 'tcsh', only for bash, zsh, fish" in done.err


@pytest.mark.parametrize(
    ("options", "line", "offered"),
    [
        ([], "jupyter-singularity mig", ["migrate"]),
        (["--jupyter"], "jupyter singularity mig", ["migrate"]),
    ],
)
async def test_bash_completes(options: list[str], line: str, offered: list[str]) -> None:
    program, *words = line.split()
    script = (
        f'eval "$({OWN[0]} completion bash {" ".join(options)})"\n'
        f"COMP_LINE='{line}'; COMP_POINT={len(line)}; COMP_TYPE=9\n"
        f"COMP_WORDS=({line}); COMP_CWORD={len(words)}\n"
        f'f=$(complete -p {program} | sed "s/.*-F \\([^ ]*\\).*/\\1/")\n'
        f'"$f" {program} {words[-1]} {words[-2] if len(words) > 1 else program}\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    env = {**NOWHERE, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = await Commands("", "")("--norc", "-c", script, program=("bash",), env=env)
    assert [word.rstrip() for word in done.out.splitlines()] == offered
    assert done.err == ""


async def test_checkpoints_are_completed_behind_their_session(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("node-1",)) as running:
        session = await running.holder(name="train.ipynb")
        await running.client().checkpoint(session, "best-one")
        await running.client().checkpoint(session, "before")
        env = Commands(running.url, "alice-token").environment
        asked = [
            *("jupyter-singularity restore train.ipynb ", "jupyter-singularity restore tra"),
            f"jupyter-singularity fork {session} bes",
        ]
        first, second, third = [await complete(line, env) for line in asked]
        assert sorted(first) == ["before", "best-one"]
        assert second == ["train.ipynb"]
        assert third == ["best-one"]
