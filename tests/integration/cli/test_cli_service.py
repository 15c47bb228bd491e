"""The commands as processes, asking the real service."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.cli_commands import JUPYTER, OWN, Commands, Done, Terminal
from support.scheduler_service import Platform, platform, until

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def service(tmp_path: Path) -> AsyncIterator[tuple[Platform, Commands]]:
    """The platform and alice's command line."""
    async with platform(tmp_path) as running:
        yield running, Commands(running.url, "alice-token")


def one_sentence(done: Done, command: str, code: int, sentence: str) -> None:
    assert done.code == code, done
    assert done.out == ""
    assert done.err.startswith(f"jupyter singularity {command}: ")
    assert done.err.count("\n") == 1
    assert sentence in done.err


async def submit(running: Platform, tmp_path: Path, name: str = "report") -> str:
    """A run of a notebook that has started."""
    notebook = tmp_path / "in.ipynb"
    notebook.write_text("{}")
    client = running.client()
    run = {"notebook": str(notebook), "parameters": {"lr": 0.1}}
    session = str((await client.submit(run=run, name=name))["id"])
    await until(lambda: session in running.agent.sessions, "started")
    return session


# ---- reading -------------------------------------------------------------------------------------


async def test_ls_show_why_history_nodes(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        older = await running.holder(name="train.ipynb")
        newer = await running.kernel(name="explore.ipynb")
        theirs = await running.kernel("bob", name="bob's")
        client = running.client()

        done = await cli("ls", program=JUPYTER)
        assert (done.code, done.err) == (0, "")
        head, *rows = done.out.splitlines()
        assert head.split() == [
            *("ID", "NAME", "KIND", "TIER", "STATE", "DEVICES", "AGE", "REASON"),
        ]
        assert [row.split()[:5] for row in rows] == [
            [newer, "explore.ipynb", "interactive", "standard", "ready"],
            [older, "train.ipynb", "interactive", "standard", "running"],
        ]
        assert "cpu:0" in rows[1]

        done = await cli("ls", "--json")
        assert done.json == await client.sessions("active")
        assert [s["id"] for s in (await cli("ls", "--json", "--limit=1")).json] == [newer]
        assert [s["id"] for s in (await cli("ls", "--json", "--state", "running")).json] == [older]
        assert (await cli("ls", "--json", "--kind", "batch")).json == []

        admin = Commands(running.url, "admin-token")
        found = (await admin("ls", "--json")).json
        assert {s["id"] for s in found} == {older, newer, theirs}
        assert [s["id"] for s in (await admin("ls", "--user", "bob", "--json")).json] == [theirs]
        assert " bob " in (await admin("ls")).out

        assert (await cli("show", older[:6], "--json")).json == await client.get_session(older)
        shown = (await cli("show", "train.ipynb")).out
        assert f"Id        {older}\n" in shown
        assert "Devices   cuda:0 -> cpu:0\n" in shown

        assert (await cli("why", older, "--json")).json == await client.why(older)
        assert (await cli("why", older)).out == (await client.why(older))["sentence"] + "\n"

        changes = await client.history(older)
        assert (await cli("history", older, "--json")).json == changes
        assert (await cli("history", older, "-n", "1", "--json")).json == changes[-1:]
        assert changes[-1]["reason"] in (await cli("history", older)).out.splitlines()[-1]

        assert (await cli("nodes", "--json")).json == await client.cluster()
        done = await cli("nodes")
        assert f"cpu:0    4 GiB  {older}" in done.out
        assert "1 of 2 devices taken" in done.err

        await client.end_session(newer)
        assert newer not in (await cli("ls")).out
        assert newer in (await cli("ls", "-a")).out
        assert (await cli("show", newer[:8], "--json")).json["process_state"] != "live"


async def test_a_token_file_and_a_configuration_file(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        session = await running.kernel(name="train.ipynb")
        nothing = {"SINGULARITY_API_URL": "", "JUPYTERHUB_API_TOKEN": ""}
        one_sentence(await cli("ls", env=nothing), "ls", 69, "are not set")
        token = tmp_path / "token"
        token.write_text("alice-token\n")
        words = ["--url", running.url, "--token-file", str(token)]
        assert session in (await cli("ls", *words, env=nothing)).out
        config = tmp_path / "config"
        config.mkdir()
        (config / "jupyter_singularity_config.py").write_text(
            f"c.ServiceApp.url = {running.url.rstrip('/')!r}\n"
            f"c.ServiceApp.token_file = {str(token)!r}\n"
        )
        there = {**nothing, "JUPYTER_CONFIG_DIR": str(config)}
        assert session in (await cli("show", "train.ipynb", env=there)).out


# ---- acting --------------------------------------------------------------------------------------


async def test_the_verbs(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        session = await running.holder(name="train.ipynb")
        client = running.client()

        done = await cli("park", "train.ipynb")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"{session} (train.ipynb) is parked")
        assert (await cli("resume", session, "--json")).json["state"] == "running"

        held = (await cli("preempt", session[:5], "--json")).json
        assert (held["state"], held["held_back"]) == ("parked", True)
        assert "parked, held back" in (await cli("ls")).out
        freed = (await cli("resume", session, "--json")).json
        assert (freed["state"], freed["held_back"]) == ("running", False)

        here = freed["devices"]
        there = "cpu:1" if here == ["cpu:0"] else "cpu:0"
        assert (await cli("migrate", session, "--device", there, "--json")).json["devices"] == [
            there
        ]
        assert (await cli("migrate", session, "--json")).json["devices"] == here

        done = await cli("checkpoint", session, "before")
        assert "checkpoint stored: 'before', c-before" in done.out
        assert (await client.get_session(session))["last_checkpoint"]["id"] == "c-before"

        before = await client.history(session)
        one_sentence(await cli("suspend", session), "suspend", 70, "stays as it is")
        one_sentence(await cli("migrate", session, "--device", "cpu:9"), "migrate", 64, "cpu:9")
        assert await client.history(session) == before


async def test_cancel(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        first, second, third = [await running.kernel(name=f"n{i}") for i in range(3)]
        theirs = await running.kernel("bob", name="theirs")
        client = running.client("admin")

        one_sentence(await cli("cancel", first, second), "cancel", 64, "nobody can be asked here")
        one_sentence(await cli("cancel", first, "nix", "-y"), "cancel", 66, "'nix'")
        one_sentence(await cli("cancel", first, theirs, "-y"), "cancel", 66, theirs)
        assert len(await client.sessions("active")) == 4

        done = await cli("cancel", "n0", "--reason", "not needed")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"{first} (n0) is ")
        assert (await client.get_session(first))["reason"].startswith(
            "closed by alice: not needed; "
        )

        admin = Commands(running.url, "admin-token")
        one_sentence(await admin("cancel", "--all", "-y"), "cancel", 64, "2 users (alice, bob)")
        assert len(await client.sessions("active")) == 3
        done = await cli("cancel", "--all", "--yes", "--json")
        assert {s["id"] for s in done.json} == {second, third}
        assert [s["id"] for s in await client.sessions("active")] == [theirs]
        done = await admin("cancel", "bob/theirs", "--json")
        assert [s["id"] for s in done.json] == [theirs]


async def test_the_question_of_cancel(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        first, second = [await running.kernel(name=f"n{i}") for i in range(2)]
        for keys, code, left in (("n\n", 130, 2), ("\x03", 130, 2), ("y\n", 0, 0)):
            terminal = Terminal()
            try:
                streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
                streams["preexec_fn"] = take_terminal  # type: ignore[assignment]
                async with cli.running("cancel", first, second, **streams) as process:
                    await terminal.until("End 2 sessions? [y/N]")
                    assert f"{first} (n0)" in terminal.shown
                    terminal.type(keys)
                    assert await process.wait() == code
            finally:
                terminal.close()
            assert len(await running.client().sessions("active")) == left


def take_terminal() -> None:
    """In the child: make the terminal on its standard input its own, so Ctrl-C reaches it."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


# ---- refusals ------------------------------------------------------------------------------------


async def test_refusals_are_one_sentence_and_change_nothing(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        mine = await running.kernel(name="same")
        await running.kernel(name="same")
        theirs = await running.kernel("bob")
        before = await running.client("admin").sessions()

        sentences = [
            (["park", "ffffffffffff"], 66, "there is no session ffffffffffff"),
            (["park", "ffff"], 66, "there is no session ffff"),
            (["show", theirs], 66, f"there is no session {theirs}"),
            (["show", theirs[:8]], 66, f"there is no session {theirs[:8]}"),
            (["park", "bob/"], 66, "no active session is called 'bob/'"),
            (["cancel", "same"], 64, "'same' may be 2 sessions: alice's "),
            (["park", mine], 70, ""),
            (["ls", "--frobnicate"], 64, "there is no option --frobnicate"),
            (["park"], 64, "jupyter singularity park SESSION"),
        ]
        for words, code, sentence in sentences:
            one_sentence(await cli(*words), words[0], code, sentence)
            refused = await cli(*words, "--json")
            assert (refused.code, refused.out) == (code, "")
            assert sentence in refused.problem["detail"]
            assert refused.problem["type"].startswith("urn:jupyter-singularity:")

        for token in ("expired-token", "no-use-token"):
            done = await Commands(running.url, token)("ls")
            one_sentence(done, "ls", 77, "token")
        assert await running.client("admin").sessions() == before


async def test_a_service_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens: connections are refused
        cli = Commands(f"http://127.0.0.1:{taken.getsockname()[1]}/s/", "alice-token")
        one_sentence(await cli("ls"), "ls", 69, "does not answer")
        one_sentence(await cli("top"), "top", 69, "does not answer")
        assert (await cli("ls", "--json")).problem["reason"] == "unavailable"
    async with service(tmp_path) as (running, _):
        hub = Commands(f"http://127.0.0.1:{running.hub.port}/", "alice-token")
        one_sentence(await hub("ls"), "ls", 69, "404")
        running.hub.ill = True
        one_sentence(await Commands(running.url, "new-token")("ls"), "ls", 69, "JupyterHub")


# ---- output --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [["ls"], ["ls", "--json"], ["nodes"], ["ls", "--help"], ["--help"], ["top"], ["logs", "-f"]],
)
async def test_a_reader_that_has_gone_is_no_error(tmp_path: Path, words: list[str]) -> None:
    async with service(tmp_path) as (running, cli):
        session = await submit(running, tmp_path)
        running.agent.logs[session] = b"line\n"
        read, write = os.pipe()
        os.close(read)
        try:
            more = [session] if words[0] == "logs" else []
            async with cli.running(*words, *more, stdout=write) as process:
                _, err = await asyncio.wait_for(process.communicate(), 60)
        finally:
            os.close(write)
        assert process.returncode == 0
        assert err.decode() in (
            "",
            "1 of 1 node connected, 0 of 2 devices taken, waiting: nobody\n",
        )


async def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    async with service(tmp_path) as (_, cli):
        full = os.open("/dev/full", os.O_WRONLY)
        try:
            async with cli.running("ls", stdout=full) as process:
                _, err = await asyncio.wait_for(process.communicate(), 60)
        finally:
            os.close(full)
        assert process.returncode == 73
        assert err.decode().startswith("jupyter singularity ls: the standard output cannot be wr")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
async def test_streams_that_are_closed(tmp_path: Path, closed: str) -> None:
    async with service(tmp_path) as (running, cli):
        first, second = [await running.kernel(name=f"n{i}") for i in range(2)]
        for words, code in (("ls --limit 1", 0), ("cancel n0 n1", 64), ("ls --nix", 64)):
            done = await cli("-c", f"{OWN[0]} {words} {closed}", program=("sh",))
            assert done.code == code
            assert "Traceback" not in done.err
            assert ("ID " in done.out) == (code == 0 and ">&-" not in closed.split())
        active = await running.client().sessions("active")
        assert {s["id"] for s in active} == {first, second}


async def test_tables_fit_the_terminal_and_pipes_get_everything(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        name = "a-notebook-with-a-long-name-" * 5
        session = await running.kernel(name=name)
        assert name in (await cli("ls")).out
        terminal = Terminal(columns=90)
        try:
            async with cli.running("ls", stdout=terminal.theirs) as process:
                await process.wait()
            await terminal.until("…")
            assert session in terminal.shown
            assert name not in terminal.shown
            assert "\x1b[" in terminal.shown
        finally:
            terminal.close()


async def test_a_command_loads_only_what_it_needs(tmp_path: Path) -> None:
    code = (
        "import sys; from singularity_scheduler.cli import main; main(['ls'])\n"
        "print(sorted({'torch', 'tornado', 'rich', 'argcomplete', 'jupyterhub', 'sqlalchemy',"
        " 'IPython', 'zmq', 'importlib.metadata', 'singularity_scheduler.core'} & {*sys.modules}))"
    )
    async with service(tmp_path) as (running, cli):
        await running.kernel()
        done = await cli("-c", code, program=(sys.executable,))
        assert done.out.splitlines()[-1] == "[]"


# ---- logs ----------------------------------------------------------------------------------------


async def test_logs_of_a_run(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        session = await submit(running, tmp_path)
        running.agent.logs[session] = b"one\ntwo\nthree\n"
        done = await cli("logs", session)
        assert (done.code, done.out, done.err) == (0, "one\ntwo\nthree\n", "")
        assert (await cli("logs", "report", "--tail", "1")).out == "three\n"
        document = (await cli("logs", session, "--json")).json
        assert document["text"] == "one\ntwo\nthree\n"
        assert document["session"] == session
        assert "Parameters  lr=0.1" in (await cli("show", session)).out


@pytest.mark.parametrize(("exit_code", "code"), [(0, 0), (1, 1)])
async def test_logs_follow_until_the_run_has_ended(
    tmp_path: Path, exit_code: int, code: int
) -> None:
    async with service(tmp_path) as (running, cli):
        session = await submit(running, tmp_path)
        running.agent.logs[session] = b"before\nfirst\n"
        async with cli.running("logs", "-f", "--tail", "1", session) as process:
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"first\n"
            running.agent.logs[session] += b"second\n"
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"second\n"
            running.agent.logs[session] += b"last"
            running.agent.exit(session, exit_code)
            out, err = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, out, err) == (code, b"last", b"")


async def test_ctrl_c_ends_the_following_and_not_the_run(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        session = await submit(running, tmp_path)
        running.agent.logs[session] = b"first\n"
        async with cli.running("logs", "-f", session) as process:
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"first\n"
            process.send_signal(signal.SIGINT)
            out, err = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, out) == (130, b"")
        assert err.decode() == (
            "jupyter singularity logs: the session goes on; "
            f"jupyter singularity logs -f {session} shows it\n"
        )
        assert (await running.client().get_session(session))["process_state"] == "live"


# ---- top -----------------------------------------------------------------------------------------


async def test_top_without_a_terminal_is_a_document_per_change(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        session = await running.kernel(name="train.ipynb")
        once = (await cli("top", "--once")).json
        assert [s["id"] for s in once["sessions"]] == [session]
        assert once["cluster"] == await running.client().cluster()
        async with cli.running("top", "--json") as process:
            assert process.stdout is not None
            first = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
            assert first["sessions"] == once["sessions"]
            running.agent.need(session)
            while True:
                line = await asyncio.wait_for(process.stdout.readline(), 60)
                if json.loads(line)["sessions"][0]["state"] == "running":
                    break
            process.send_signal(signal.SIGINT)
            _, err = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, err) == (130, b"")


@pytest.mark.parametrize(("keys", "code"), [("q", 0), ("\x03", 130)])
async def test_top_on_a_terminal(tmp_path: Path, keys: str, code: int) -> None:
    async with service(tmp_path) as (running, cli):
        session = await running.kernel(name="train.ipynb")
        terminal = Terminal()
        try:
            before = termios.tcgetattr(terminal.theirs)
            streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
            streams["preexec_fn"] = take_terminal  # type: ignore[assignment]
            async with cli.running("top", **streams) as process:
                await terminal.until(session)
                terminal.type("x")  # means nothing
                running.agent.need(session)
                await terminal.until("running")
                await running.client().end_session(session)
                await terminal.until("completed")
                terminal.type(keys)
                assert await asyncio.wait_for(process.wait(), 60) == code
            await terminal.until("\x1b[?1049l")  # the screen is given back
            assert termios.tcgetattr(terminal.theirs) == before
        finally:
            terminal.close()


async def test_top_stays_while_the_service_is_away(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        session = await running.kernel(name="train.ipynb")
        terminal = Terminal()
        try:
            async with cli.running("top", stdout=terminal.theirs) as process:
                await terminal.until(session)
                await running.stop()
                await terminal.until("this may be old")
                terminal.shown = ""
                await running.start()
                running.agent.need(session)
                await terminal.until("running")
                assert process.returncode is None
        finally:
            terminal.close()
