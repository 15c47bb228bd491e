"""`%singularity` and busy/idle reports in a real kernel with a real session socket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from singularity_proxy.errors import BadRequest, Conflict
from singularity_scheduler.client.verbs import VERBS
from support.kernel_agent import Agent, Cut, agent
from support.kernel_relay import Channels, client, ipykernel, relay, wait_until

STATUS = {
    "id": "0123456789ab",
    "name": "train.ipynb",
    "state": "running",
    "reason": "the first device call got a device",
    "tier": "standard",
    "virtual_devices": 1,
    "devices": ["cpu:1"],
    "last_checkpoint": None,
    "others_waiting": [{"user": "bo", "name": "x<y.ipynb", "tier": "premium", "devices": 2}],
}


@dataclass
class Notebook:
    """A kernel with the extension, its agent and a client."""

    agent: Agent
    client: BlockingKernelClient

    def run(self, code: str, **header: Any) -> list[dict[str, Any]]:
        """Execute `code`; returns the contents of its display, stream and error messages."""
        outputs = []

        def output(message: dict[str, Any]) -> None:
            if message["msg_type"] in ("display_data", "stream", "error", "execute_result"):
                outputs.append(message["content"])

        self.client.execute_interactive(code, output_hook=output, timeout=60)
        return outputs

    def text(self, code: str) -> str:
        return "".join(
            o.get("text") or o.get("data", {}).get("text/plain") or o.get("evalue", "")
            for o in self.run(code)
        )


@pytest.fixture(scope="module")
def kernel() -> Iterator[tuple[Channels, Agent]]:
    folder = Path(os.environ["TMPDIR"]) / "ext"
    folder.mkdir()
    channels = Channels(folder)
    with agent(folder / "agent.sock") as running, relay(channels):
        env = {"SINGULARITY_SOCKET": str(running.path)}
        with ipykernel(channels, "--ext", "singularity_kernel", **env):
            yield channels, running


@pytest.fixture
def notebook(kernel: tuple[Channels, Agent]) -> Iterator[Notebook]:
    channels, running = kernel
    with client(channels) as found:
        running.answers.clear()
        yield Notebook(running, found)


@pytest.fixture
def plain(short_dir: Path) -> Iterator[Notebook]:
    """A kernel of a session without the extension."""
    channels = Channels(short_dir)
    with agent(short_dir / "agent.sock") as running, relay(channels):
        env = {"SINGULARITY_SOCKET": str(running.path)}
        with ipykernel(channels, **env), client(channels) as found:
            yield Notebook(running, found)


def _reports(running: Agent, expected: list[bool]) -> None:
    wait_until(lambda: running.busy == expected, 10, f"{running.busy} did not become {expected}")


# ---- busy and idle -------------------------------------------------------------------------------


def test_a_fresh_kernel_is_idle_and_a_cell_makes_it_busy(notebook: Notebook) -> None:
    wait_until(lambda: notebook.agent.busy[:1] == [False], why="the start was not reported")
    notebook.agent.calls.clear()
    assert notebook.text("print('hello')") == "hello\n"
    _reports(notebook.agent, [True, False])
    notebook.run("1 / 0")
    _reports(notebook.agent, [True, False, True, False])
    notebook.run("await __import__('asyncio').sleep(0)")
    _reports(notebook.agent, [True, False] * 3)


def test_cells_run_while_the_agent_is_away_and_it_learns_the_state_later(
    notebook: Notebook,
) -> None:
    notebook.agent.stop()
    assert notebook.text("print('alone')") == "alone\n"
    notebook.agent.calls.clear()
    notebook.agent.start()
    _reports(notebook.agent, [False])
    notebook.run("pass")
    _reports(notebook.agent, [False, True, False])


def test_a_subshell_keeps_the_session_busy(notebook: Notebook) -> None:
    client = notebook.client
    client.control_channel.send(client.session.msg("create_subshell_request", {}))
    subshell = client.get_control_msg(timeout=30)["content"]["subshell_id"]
    notebook.agent.calls.clear()
    message = client.session.msg(
        "execute_request",
        {"code": "import time\nwhile not globals().get('go'): time.sleep(0.01)", "silent": False},
    )
    message["header"]["subshell_id"] = subshell
    client.shell_channel.send(message)
    _reports(notebook.agent, [True])
    assert notebook.text("print('in the main shell')") == "in the main shell\n"
    assert notebook.agent.busy == [True]
    notebook.run("go = True")
    _reports(notebook.agent, [True, False])
    client.control_channel.send(
        client.session.msg("delete_subshell_request", {"subshell_id": subshell})
    )
    assert client.get_control_msg(timeout=30)["content"]["status"] == "ok"


def test_load_and_unload_in_a_cell(plain: Notebook) -> None:
    assert plain.run("%load_ext singularity_kernel") == []
    _reports(plain.agent, [True, False])  # loaded by a running cell
    plain.agent.answers["why"] = {"sentence": "because"}
    assert plain.text("%singularity why") == "because"
    plain.agent.calls.clear()
    assert plain.run("%unload_ext singularity_kernel") == []
    assert "not found" in plain.text("%singularity")
    assert plain.run("import threading; assert len([t for t in threading.enumerate() "
                     "if t.name == 'singularity-activity']) == 0") == []  # fmt: skip
    assert plain.agent.busy == [True]  # the cell that unloaded it; nothing after
    assert plain.run("%load_ext singularity_kernel") == []
    _reports(plain.agent, [True, True, False])


# ---- the magic -----------------------------------------------------------------------------------


def test_status_is_one_screen_as_text_and_html(notebook: Notebook) -> None:
    notebook.agent.answers["status"] = STATUS
    (shown,) = notebook.run("%singularity")
    text, html = shown["data"]["text/plain"], shown["data"]["text/html"]
    assert len(text.splitlines()) < 20
    for word in (
        "0123456789ab train.ipynb",
        "running: the first device call got a device",
        "standard",
        "cuda:0 -> cpu:1",
        "none yet",
        "bo/x<y.ipynb (premium, 2 devices)",
    ):
        assert word in text
    assert "x&lt;y.ipynb" in html
    assert "<table>" in html
    assert notebook.text("%singularity status") == text


@pytest.mark.parametrize(
    ("line", "method", "params"),
    [
        ("park", "park", {}),
        ("resume", "resume", {}),
        ("migrate --device 1", "migrate", {"device": 1}),
        ("migrate --device cpu:1", "migrate", {"device": "cpu:1"}),
        ("migrate", "migrate", {}),
        ("checkpoint", "checkpoint", {}),
        ("checkpoint before-lunch", "checkpoint", {"name": "before-lunch"}),
        ("checkpoint 'before lunch'", "checkpoint", {"name": "before lunch"}),
        ("checkpoint before lunch", "checkpoint", {"name": "before lunch"}),
        ('resume "best one"', "resume", {"checkpoint": "best one"}),
        ("migrate --node node-2", "migrate", {"node": "node-2"}),
        ("suspend", "suspend", {}),
        ("restore best", "restore", {"checkpoint": "best"}),
        ("fork best", "fork", {"checkpoint": "best"}),
        ("keep 15 min", "keep", {"for_s": 900.0}),
        ("tier basic", "tier", {"tier": "basic"}),
        ("priority high", "priority", {"priority": "high"}),
    ],
)
def test_verbs_act_on_the_session(
    notebook: Notebook, line: str, method: str, params: dict[str, Any]
) -> None:
    notebook.agent.answers[method] = STATUS
    notebook.agent.calls.clear()
    said = notebook.text(f"%singularity {line}")
    assert said.endswith(".")
    short = ("checkpoint", "fork", "keep", "tier", "priority")
    assert ("cuda:0 -> cpu:1" in said) == (method not in short)
    assert (method, params) in notebook.agent.calls


def test_a_cell_that_was_frozen_while_it_asked_says_where_it_is(notebook: Notebook) -> None:
    loss = {
        "level": "process",
        "back": ["its process"],
        "lost": ["1 open socket"],
        "rolled_back": False,
        "hashes_checked": 12,
        "checkpoint": "k1",
        "at": "2026-11-21T10:00:00+00:00",
    }
    live = {**STATUS, "process_state": "live", "node": "node-2", "loss": loss}

    def move() -> None:
        notebook.agent.answers["status"] = live

    notebook.agent.answers["status"] = {**live, "loss": None}
    notebook.agent.answers["suspend"] = Cut(move)
    said = notebook.text("%singularity suspend")
    assert said.startswith("This cell was away for ")
    assert said.endswith(
        "and goes on, now on node node-2: it came back from checkpoint k1, process state; "
        "not brought back: 1 open socket."
    )
    # A checkpoint cuts the connection too, and this process has never been away.
    stored = {"id": "k2", "name": "good", "at": None, "level": "process", "bytes": 1024}
    notebook.agent.answers["checkpoint"] = Cut(
        lambda: notebook.agent.answers.update(status={**live, "last_checkpoint": stored})
    )
    assert notebook.text("%singularity checkpoint good") == (
        "Checkpoint stored: 'good', k2, 1 KiB, process state."
    )
    # It could not be frozen: the session goes on, and the scheduler has said why.
    refused = {
        **live,
        "reason": "could not be suspended, so it goes on as it was (disk full)",
        "reason_code": "suspend_failed",
    }
    notebook.agent.answers["suspend"] = Cut(lambda: notebook.agent.answers.update(status=refused))
    assert "'suspend' was not confirmed; the session goes on: could not be suspended" in (
        notebook.text("%singularity suspend")
    )
    notebook.agent.answers["why"] = Cut(lambda: None)
    assert "closed the connection during 'why'" in notebook.text("%singularity why")


def test_what_is_stored_is_a_table(notebook: Notebook) -> None:
    notebook.agent.answers["checkpoints"] = [
        {"id": "k2", "name": "before lunch", "level": "process", "bytes": 2048, "at": None},
        {"id": "k1", "name": "", "level": "device", "bytes": 0, "damaged": "chunk ab is wrong"},
    ]
    lines = notebook.text("%singularity checkpoints").splitlines()
    assert lines[0] == "Checkpoints"
    assert lines[1].split("  ")[1:] == ["before lunch", "k2, process state, 2 KiB, 0 B stored"]
    assert lines[2].endswith("device state, 0 B, 0 B stored, damaged: chunk ab is wrong")
    notebook.agent.answers["checkpoints"] = []
    assert "nothing is stored yet" in notebook.text("%singularity checkpoints")


def test_history_and_why(notebook: Notebook) -> None:
    notebook.agent.answers["history"] = [
        {"at": "2020-01-01T00:00:00Z", "state": "waiting", "reason": "no device is free"},
        {"at": "2020-01-01T00:00:01+00:00", "state": "running", "reason": "cpu:0 became free"},
    ]
    text = notebook.text("%singularity history --limit 5")
    assert "waiting: no device is free" in text.splitlines()[1]
    assert ("history", {"limit": 5}) in notebook.agent.calls
    notebook.agent.answers["why"] = {"sentence": "It waits for a device.", "facts": {}}
    assert notebook.text("%singularity why") == "It waits for a device."


def test_help_is_a_line_for_each_verb(notebook: Notebook) -> None:
    lines = notebook.text("%singularity help").splitlines()
    assert lines == notebook.text("%singularity --help").splitlines()
    assert lines[0] == "%singularity"
    rows = dict(line.strip().split("  ", 1) for line in lines[1:])
    known = {name.split()[0] for names in rows for name in names.split(", ")}
    assert known == {*VERBS, "submit", "run", "help"}
    assert rows["keep"].strip().startswith("keep it alive for a while")
    assert "%%singularity run --ranks 4" in rows["run"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("prak", "did you mean 'park'?"),
        ("Park", "did you mean 'park'?"),
        ("pause", "did you mean 'park'?"),
        ("show", "did you mean 'status'?"),
        ("xyzzy", "has no verb 'xyzzy'; it knows status, park"),
        ("status lunch", "'status' takes no name"),
        ("restore", "'restore' needs the name or id of a checkpoint"),
        ("keep", "'keep' needs a length of time: 90s, 15min, 2h, or 0 for no longer"),
        ("keep ever", "'ever' is no length of time"),
        ("tier", "'tier' needs one of premium, standard and basic"),
        ("priority", "'priority' needs one of low, medium and high"),
        ("migrate --node n --device 1", "give either --device, --node or"),
        ("migrate --node n --cluster c", "not two of them"),
        ("park --cluster c", "'park' takes no --cluster"),
        ("park --node n", "'park' takes no --node"),
        ("migrate 1", "given with --device"),
        ("park --device 1", "'park' takes no --device"),
        ("history --limit 0", "--limit must be 1 or more"),
        ("history --limit x", "invalid int value"),
        ("park now then", "takes no name"),
    ],
)
def test_a_fault_of_the_user_is_one_sentence(notebook: Notebook, line: str, sentence: str) -> None:
    said = notebook.text(f"%singularity {line}")
    assert "UsageError" in said
    assert sentence in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("there is no device 'cpu:7'; there are cpu:0 and cpu:1"),
        Conflict("the session is parked already"),
    ],
)
def test_a_refusal_is_one_sentence(notebook: Notebook, error: BadRequest) -> None:
    notebook.agent.answers["migrate"] = error
    said = notebook.text("%singularity migrate --device 7")
    assert error.message in said
    assert "Traceback" not in said


def test_an_agent_that_is_away_is_one_sentence(notebook: Notebook) -> None:
    notebook.agent.stop()
    said = notebook.text("%singularity")
    assert "nobody answers" in said
    assert "Traceback" not in said
    notebook.agent.start()


def test_help_names_every_verb(notebook: Notebook) -> None:
    reply = notebook.client.execute_interactive("%singularity?", timeout=60)
    text = str(reply["content"]["payload"])
    for verb in (
        "status",
        "park",
        "resume",
        "migrate",
        "checkpoint",
        "why",
        "history",
        "keep",
        "tier",
        "--device",
    ):
        assert verb in text


def test_outside_a_session_each_verb_says_one_sentence(
    notebook: Notebook,
) -> None:
    notebook.run("import os; kept = os.environ.pop('SINGULARITY_SOCKET')")
    try:
        for verb in ("", "park", "history"):
            said = notebook.text(f"%singularity {verb}")
            assert said.startswith("This kernel is not a Singularity session")
            assert "\n" not in said
    finally:
        notebook.run("os.environ['SINGULARITY_SOCKET'] = kept")
